"""Consumers and callers in other processes wake at once, by the kernel or by polling."""

import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.sqlite import workers
from weakincentives.contrib.mailbox import SQLiteMailbox, SQLiteReplyStore
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.sqlite.signals import InotifySignal, PollingSignal, best_signal
from weakincentives.contrib.mailbox.sqlite.wake import LINGER

spawn = multiprocessing.get_context("spawn")


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
    worker = spawn.Process(target=workers.echo, args=(database.path,))
    worker.start()
    yield
    SQLiteMailbox("jobs", database).send("stop")
    worker.join(30)
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
        assert jobs.send_expecting_reply(number).wait(timeout=20) == number
        jobs.send(number)
        (answer,) = answers.receive(wait_time_seconds=20)
        assert answer.body == number
        answer.acknowledge()
        took.append(time.monotonic() - began)
    assert sorted(took)[10] < 0.5


def test_one_batch_wakes_as_many_consumers_as_it_has_messages(database: Database) -> None:
    box = SQLiteMailbox[int]("jobs", database, reaper_interval=60)
    received: list[int] = []

    def consume() -> None:
        received.extend(message.body for message in box.receive(wait_time_seconds=60))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    sender = spawn.Process(target=workers.send_many, args=(database.path, 4))
    sender.start()
    for thread in threads:
        thread.join(30)
    sender.join(30)
    assert sorted(received) == [0, 1, 2, 3]


def test_one_thread_watches_for_everybody_and_ends(path: Path) -> None:
    def watchers() -> int:
        return sum(thread.name == "weakincentives-wake" for thread in threading.enumerate())

    before = watchers()
    database = open_database(path)
    boxes = [SQLiteMailbox[int](f"jobs-{number}", database) for number in range(10)]
    threads = [
        threading.Thread(target=box.receive, kwargs={"wait_time_seconds": 60}) for box in boxes
    ]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 30
    while len(database.wake._bells) < 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert watchers() == before + 1
    for box in boxes:
        box.close()
    for thread in threads:
        thread.join(30)
    deadline = time.monotonic() + 10 * LINGER
    while watchers() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert watchers() == before
    assert not database.wake._bells
    boxes[0].store.listen().close()
    assert watchers() == before + 1
    database.close()
    assert watchers() == before


def test_closing_the_database_ends_a_wait(database: Database) -> None:
    replies = SQLiteReplyStore[int](database)
    replies.create("r", ttl=60)
    listener = replies.table.listen("r")
    ended = threading.Event()

    def wait() -> None:
        try:
            while True:
                listener.get(60)
        except Exception:
            ended.set()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    database.close()
    assert ended.wait(30)
    thread.join(10)


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
    assert signal.wait(10)
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
    assert not signal.wait(0.01)
    version[0] = 1
    assert signal.wait(10)
    assert not signal.wait(0)
