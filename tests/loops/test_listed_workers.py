"""Workers are listed by their backend while they serve it, and nothing about that disturbs them."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime import (
    DLQConsumer,
    InMemoryMailbox,
    UnsupportedOperationError,
    Worker,
    WorkerConfig,
    WorkerInfo,
)
from weakincentives.runtime.mailbox.errors import MailboxConnectionError
from weakincentives.runtime.mailbox.memory.workers import InMemoryWorkerTable
from weakincentives.runtime.mailbox.testing import driven
from weakincentives.runtime.mailbox.workers import encoded
from weakincentives.runtime.worker import announcer

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=["memory", "sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/queues.db"


@contextmanager
def serving(*loops: Any) -> Iterator[None]:
    threads = [threading.Thread(target=loop.run, daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.shutdown(timeout=20)
        for thread in threads:
            thread.join(20)


def mine(backend: Any) -> WorkerInfo | None:
    """Return this process as the backend lists it; it is never listed twice."""
    found = [worker for worker in backend.workers() if worker.pid == os.getpid()]
    assert len(found) <= 1
    return found[0] if found else None


def test_all_loops_of_a_process_are_one_worker(url: str) -> None:
    released = threading.Event()

    async def wait(body: str) -> None:
        while not released.is_set():
            await asyncio.sleep(0.01)

    with connect(url) as backend:
        jobs, tasks = backend.mailbox("listed-threads"), backend.mailbox("listed-tasks")
        for box in (jobs, tasks):
            box.purge()
        id = jobs.send("held")
        tasks.send("held too")
        plain = Worker(jobs, lambda body: released.wait(), config=WorkerConfig(concurrency=2))
        letters = DLQConsumer(
            mailbox=backend.mailbox("listed-letters"), handler=lambda letter: None
        )
        with serving(plain, Worker(tasks, wait), letters):
            worker = eventually(lambda: _if_whole(mine(backend)))
            assert (worker.host, worker.version) == (
                socket.gethostname(),
                weakincentives.__version__,
            )
            assert timedelta(0) <= datetime.now(UTC) - worker.started_at < timedelta(minutes=5)
            loops = {loop.mailbox: loop for loop in worker.loops}
            assert (loops["listed-threads"].concurrency, loops["listed-threads"].held) == (2, 1)
            assert loops["listed-threads"].lag_seconds is None
            assert loops["listed-tasks"].lag_seconds is not None
            (held,) = [one for one in worker.oldest_held if one.mailbox == "listed-threads"]
            assert (held.message_id, held.delivery_count) == (id, 1)
            assert held.held_seconds >= 0
            assert 0 < held.lease_seconds_left <= 60
            assert asyncio.run(backend.workers_async())[0].id in {w.id for w in backend.workers()}
            released.set()
        assert mine(backend) is None


def _if_whole(worker: WorkerInfo | None) -> WorkerInfo | None:
    return worker if worker and len(worker.loops) == 3 and worker.held == 2 else None


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcer, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(announcer, "FIRST_SECONDS", 0.01)


def test_what_is_held_becomes_known_at_the_next_beat(often: None) -> None:
    with connect("memory://") as backend:
        box, released = backend.mailbox("jobs"), threading.Event()
        with serving(Worker(box, lambda body: released.wait())):
            eventually(lambda: (worker := mine(backend)) and worker.held == 0)
            box.send("job")
            eventually(lambda: (worker := mine(backend)) and worker.held == 1)
            released.set()
            eventually(lambda: (worker := mine(backend)) and worker.held == 0)


def test_a_loop_stays_listed_when_another_one_closes_its_backend(
    often: None, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/queues.db"
    with ExitStack() as stack, connect(url) as backend:
        first = stack.enter_context(connect(url))
        stack.enter_context(serving(Worker(first.mailbox("first"), print)))
        eventually(lambda: served(backend) == {"first"})
        with connect(url) as second, serving(Worker(second.mailbox("second"), print)):
            eventually(lambda: served(backend) == {"first", "second"})
            stack.close()
            eventually(lambda: served(backend) == {"second"}, within=30)
        assert mine(backend) is None


def served(backend: Any) -> set[str]:
    worker = mine(backend)
    return {loop.mailbox for loop in worker.loops} if worker else set()


def test_what_a_worker_says_is_bounded(often: None) -> None:
    with connect("memory://") as backend:
        box, released = backend.mailbox("jobs"), threading.Event()
        box.send_batch(list(range(50)))
        loops = [Worker(backend.mailbox(f"other-{n}"), print) for n in range(3)]
        many = Worker(
            box, lambda body: released.wait(), config=WorkerConfig(concurrency=2, batch=25)
        )
        with serving(many, *loops):
            worker = eventually(lambda: (one := mine(backend)) and one.held == 50 and one)
            assert len(worker.oldest_held) == 20
            entry = encoded(worker)
            released.set()
    assert len(entry) < 5000


class Broken(InMemoryWorkerTable):
    """A table that counts what is asked of it, and hangs or fails."""

    def __init__(self, *, hangs: bool) -> None:
        super().__init__()
        self.hangs = hangs
        self.writes = 0
        self.mended = threading.Event()

    async def write(self, id: str, entry: bytes, lasts: float) -> None:
        self.writes += 1
        if self.hangs:
            self.mended.wait()
        elif not self.mended.is_set():
            raise MailboxConnectionError("the server is gone")
        await super().write(id, entry, lasts)


def test_a_table_that_hangs_delays_no_job_and_no_shutdown(often: None) -> None:
    box, table, done = InMemoryMailbox[int]("jobs"), Broken(hangs=True), []
    box.store.worker_table = table  # type: ignore[attr-defined]
    worker = Worker(box, done.append)
    with serving(worker):
        eventually(lambda: table.writes)
        box.send_batch([1, 2, 3])
        eventually(lambda: done == [1, 2, 3])
        began = time.monotonic()
        assert worker.shutdown(timeout=60)
        assert time.monotonic() - began < 10 * announcer.LEAVE_SECONDS
    table.mended.set()
    eventually(lambda: driven(table.rows()) == [])  # it removes what it has written in the end


def test_a_table_that_fails_is_logged_once_for_each_outage(
    often: None, caplog: pytest.LogCaptureFixture
) -> None:
    box, table = InMemoryMailbox[int]("jobs"), Broken(hangs=False)
    box.store.worker_table = table  # type: ignore[attr-defined]
    with caplog.at_level(logging.WARNING), serving(Worker(box, print)):
        eventually(lambda: table.writes >= 3)
        assert [record.getMessage() for record in caplog.records] == [
            "this worker cannot be listed, and runs on: MailboxConnectionError: the server is gone"
        ]
        table.mended.set()
        eventually(lambda: driven(table.rows()))


def test_a_process_writes_once_a_beat_however_many_loops_it_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcer, "BEAT_SECONDS", 0.5)
    monkeypatch.setattr(announcer, "FIRST_SECONDS", 0.0)
    with connect("memory://") as backend:
        table = Broken(hangs=False)
        table.mended.set()
        boxes = [backend.mailbox(f"jobs-{n}") for n in range(5)]
        for box in boxes:
            box.store.worker_table = table  # type: ignore[attr-defined]
        began = time.monotonic()
        with serving(*(Worker(box, print) for box in boxes)):
            eventually(lambda: table.writes >= 4)
            seconds, writes = time.monotonic() - began, table.writes
    assert writes <= 1 + seconds / 0.5


def test_the_default_is_well_under_a_command_a_second() -> None:
    assert announcer.BEAT_SECONDS >= 5
    assert announcer.LISTED_BEATS >= 3


def test_a_short_run_is_never_listed_and_leaves_no_thread() -> None:
    box, table = InMemoryMailbox[int]("jobs"), Broken(hangs=False)
    box.store.worker_table = table  # type: ignore[attr-defined]
    Worker(box, print).run(max_iterations=1, wait_time_seconds=0)
    eventually(lambda: "announcer" not in [one.name for one in threading.enumerate()])
    assert table.writes == 0


def test_a_foreign_backend_without_a_list_says_so() -> None:
    pytest.importorskip("boto3")
    with (
        connect("sqs://eu-west-1") as backend,
        pytest.raises(UnsupportedOperationError, match="cannot list its workers"),
    ):
        backend.workers()


def test_rows_that_cannot_be_read_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    with connect("memory://") as backend:
        table = backend._worker_table()  # type: ignore[attr-defined]
        for number, rubbish in enumerate((b"", b"{}", b"[1", b'{"id": 1}')):
            driven(table.write(str(number), rubbish, 60))
        assert backend.workers() == []
    assert "4 workers cannot be read" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("url", "kind"), [("sqlite", "plain"), ("redis", "async")], indirect=["url"]
)
def test_a_worker_is_gone_at_once_after_its_end_and_soon_after_a_kill(url: str, kind: str) -> None:
    with connect(url) as backend:
        backend.mailbox("listed-jobs").purge()
        with child(url, kind) as killed:
            eventually(lambda: held_by(backend, killed.pid) == 1)
            killed.send_signal(signal.SIGKILL)
            killed.wait(60)
            eventually(lambda: held_by(backend, killed.pid) is None)
        backend.mailbox("listed-jobs").purge()
        with child(url, kind) as ended:
            eventually(lambda: held_by(backend, ended.pid) == 1)
            assert ended.stdin is not None
            ended.stdin.close()
            assert ended.wait(60) == 0
            assert held_by(backend, ended.pid) is None


def held_by(backend: Any, pid: int) -> int | None:
    return next((worker.held for worker in backend.workers() if worker.pid == pid), None)


@contextmanager
def child(url: str, kind: str) -> Iterator["subprocess.Popen[str]"]:
    with connect(url) as backend:
        backend.mailbox("listed-jobs").send("begun")
    command = [sys.executable, "-m", "tests.loops.listed_child", url, kind]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("url", ["sqlite", "redis"], indirect=True)
def test_a_thousand_workers_are_listed_quickly(url: str) -> None:
    with connect(url) as backend:
        table = backend._worker_table()  # type: ignore[attr-defined]
        worker = _worker(20)
        for number in range(1000):
            driven(table.write(f"many-{number}", encoded(worker), 60))
        began = time.monotonic()
        assert len([one for one in backend.workers() if one.id == worker.id]) == 1000
        assert time.monotonic() - began < 10  # a second is the goal
        for number in range(1000):
            driven(table.remove(f"many-{number}"))


def _worker(held: int) -> WorkerInfo:
    from weakincentives.runtime import HeldMessage, LoopInfo

    messages: Sequence[HeldMessage] = [
        HeldMessage("jobs", f"message-{number}-of-many", 1, 10.0, 50.0) for number in range(held)
    ]
    return WorkerInfo(
        *("many", "host", 0, "1.0", datetime.now(UTC)),
        (LoopInfo("jobs", 4, held),),
        held,
        tuple(messages),
    )


def test_a_forked_child_does_not_list_the_loops_of_its_parent(often: None) -> None:
    with connect("memory://") as backend, serving(Worker(backend.mailbox("jobs"), print)):
        eventually(lambda: mine(backend))
        pid = os.fork()
        if pid == 0:
            os._exit(len(announcer.ANNOUNCERS._of))
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
