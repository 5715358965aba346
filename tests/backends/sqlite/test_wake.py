"""Consumers and callers in other processes wake at once, by the kernel or by polling."""

import _thread
import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

from testkit.forked import context
from testkit.waiting import eventually
from tests.backends.sqlite import workers
from weakincentives.contrib.mailbox import SQLiteMailbox, SQLiteReplyStore
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.inotify import InotifySignal, PollingSignal, best_signal
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.sqlite.wake import Watch
from weakincentives.runtime.mailbox.testing import driven


def polling(_: str, version: Callable[[], int]) -> PollingSignal:
    return PollingSignal(version)


@pytest.fixture(params=["inotify", "polling"])
def database(request: pytest.FixtureRequest, path: Path) -> Iterator[Database]:
    if request.param == "polling":
        made = open_database(path, make_signal=polling)
    else:
        made = open_database(path)
    yield made
    made.close()


@pytest.fixture
def echo(database: Database) -> Iterator[None]:
    worker = context.Process(target=workers.echo, args=(database.path,))
    worker.start()
    yield
    SQLiteMailbox("jobs", database).send("stop")
    worker.join(120)
    assert worker.exitcode == 0


@pytest.mark.usefixtures("echo")
def test_messages_and_replies_cross_processes_without_waiting_for_the_next_look(
    database: Database,
) -> None:
    # With a look only every 30 s, all of this would time out if a wake-up were lost.
    jobs = SQLiteMailbox("jobs", database, reply_type=int)
    answers = SQLiteMailbox("answers", database, reaper_interval=30)
    assert jobs.send_expecting_reply(0).wait(timeout=30) == 0
    took = []
    for number in range(20):
        began = time.monotonic()
        assert jobs.send_expecting_reply(number).wait(timeout=60) == number
        jobs.send(number)
        (answer,) = answers.receive(wait_time_seconds=20)
        assert answer.body == number
        answer.acknowledge()
        took.append(time.monotonic() - began)
    assert sorted(took)[10] < 5


def test_one_batch_wakes_as_many_consumers_as_it_has_messages(database: Database) -> None:
    box = SQLiteMailbox[int]("jobs", database, reaper_interval=60)
    received: list[int] = []

    def consume() -> None:
        received.extend(message.body for message in box.receive(wait_time_seconds=60))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    sender = context.Process(target=workers.send_many, args=(database.path, 4))
    sender.start()
    for thread in threads:
        thread.join(120)
    sender.join(60)
    assert sorted(received) == [0, 1, 2, 3]


def codes_of(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


def test_one_thread_watches_for_everybody_and_ends(path: Path) -> None:
    def watchers() -> int:
        frames = list(sys._current_frames().values())
        return sum(any(code is Watch._run.__code__ for code in codes_of(one)) for one in frames)

    before = watchers()
    database = open_database(path)
    boxes = [SQLiteMailbox[int](f"jobs-{number}", database) for number in range(10)]
    threads = [
        threading.Thread(target=box.receive, kwargs={"wait_time_seconds": 60}) for box in boxes
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(database.wake._bells) >= 10)
    eventually(lambda: watchers() != before)
    assert watchers() == before + 1
    for box in boxes:
        box.close()
    for thread in threads:
        thread.join(120)
    eventually(lambda: watchers() == before)
    assert not database.wake._bells
    boxes[0].store.listen().close()
    eventually(lambda: watchers() == before + 1)
    database.close()
    assert watchers() == before


def test_closing_the_database_ends_a_wait(database: Database) -> None:
    replies = SQLiteReplyStore[int](database)
    replies.create("r", ttl=60)
    listener = replies._table.listen("r")
    ended = threading.Event()

    def wait() -> None:
        try:
            while True:
                driven(listener.get(60))
        except Exception:
            ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    database.close()
    assert ended.wait(120)
    thread.join(120)


def test_a_handler_inside_a_read_may_listen_while_another_thread_does(path: Path) -> None:
    joining, reading = threading.Event(), threading.Event()

    def make_signal(_: str, version: Callable[[], int]) -> PollingSignal:
        joining.set()
        reading.wait(30)
        return PollingSignal(version)

    database = open_database(path, make_signal=make_signal)

    def listen_inside_a_read() -> None:
        with database.file.read_lock:
            joining.wait(30)
            reading.set()
            database.wake.join(("SELECT 1", "a"))

    threads = [
        threading.Thread(target=listen_inside_a_read, daemon=True),
        threading.Thread(target=database.wake.join, args=(("SELECT 1", "b"),), daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    database.close()


def test_what_is_told_after_the_end_opens_no_file(
    path: Path, open_files: Callable[[], int]
) -> None:
    before = open_files()
    database = open_database(path)
    wake = database.wake
    database.close()
    wake.notify(("SELECT 1", "a"), 1)
    assert open_files() <= before  # fewer when a thread of an earlier test ends meanwhile


class Late:
    """A transaction after which another thread closes the database at once."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._transact = database.transact

    def __call__(self, *arguments: Any) -> Any:
        result = self._transact(*arguments)
        self._database.close()
        return result


STEPS: dict[str, Callable[[SQLiteMailbox[Any, Any], Any], object]] = {
    "send": lambda box, _: box.send_batch([1, 2]),
    "call": lambda box, _: box.send_expecting_reply(1),
    "nack": lambda _, message: message.nack(),
    "reply": lambda _, message: message.reply("x"),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_step_does_not_fail_once_it_is_committed(
    path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Or else who sends again what was not sent sends it twice."""
    database = open_database(path)
    replies = SQLiteReplyStore[Any](database)
    box = SQLiteMailbox[Any, Any]("box", database, reply_store=replies)
    box.send_expecting_reply(0)
    (message,) = box.receive()
    monkeypatch.setattr(database, "transact", Late(database))
    assert STEPS[step](box, message)


def test_a_process_that_can_start_no_thread_looks_by_itself(
    path: Path, open_files: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    with SQLiteMailbox[Any, Any]("box", path, reaper_interval=0.01) as box:
        box.send("later", delay_seconds=1)
        monkeypatch.setattr(_thread, "start_new_thread", no_thread)
        box.receive(wait_time_seconds=0.01)
        before = open_files()
        for _ in range(3):
            box.receive(wait_time_seconds=0.01)
        assert open_files() <= before
        (message,) = box.receive(wait_time_seconds=20)
        message.acknowledge()
        monkeypatch.undo()
        assert box.receive(wait_time_seconds=0.01) == []
        assert box.store._database.wake._watch is not None  # type: ignore[attr-defined]


def test_a_hundred_blocked_consumers_do_not_stop_a_send(database: Database) -> None:
    box = SQLiteMailbox[int]("jobs", database)

    async def program() -> list[int]:
        waiting = [
            asyncio.ensure_future(box.receive_async(wait_time_seconds=60)) for _ in range(100)
        ]
        await asyncio.sleep(0)
        await box.send_async(7)
        done, pending = await asyncio.wait(waiting, timeout=30, return_when="FIRST_COMPLETED")
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        return [message.body for task in done for message in task.result()]

    assert asyncio.run(program()) == [7]


def test_signals_hear_only_what_is_new(path: Path) -> None:
    path.write_bytes(b"x")
    signal = best_signal(str(path), lambda: 0)
    if not isinstance(signal, InotifySignal):
        pytest.skip("inotify is not available here")
    assert not signal.wait(0)
    file = os.open(path, os.O_RDONLY)
    os.pread(file, 1, 0)
    os.close(file)
    assert signal.wait(120)
    assert not signal.wait(0)
    signal.interrupt()
    assert not signal.wait(10)
    signal.close()
    signal.close()
    signal.interrupt()


def test_polling_takes_over_where_inotify_cannot(tmp_path: Path) -> None:
    signal = best_signal(str(tmp_path / "missing"), lambda: 0)
    assert isinstance(signal, PollingSignal)
    signal.interrupt()
    assert not signal.wait(10)


def test_polling_hears_a_change() -> None:
    version = [0]
    signal = PollingSignal(lambda: version[0])
    assert signal.wait(120)  # what came before the first look must not be missed
    assert not signal.wait(0.01)
    version[0] = 1
    assert signal.wait(120)
    assert not signal.wait(0)
