"""Several processes on one file: contention, fairness and fork."""

import multiprocessing
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.sqlite import workers
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite import opening
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.runtime.mailbox import MailboxConnectionError

spawn = multiprocessing.get_context("spawn")


def in_fork(work: Callable[[], object]) -> int:
    """Run in a forked child; return its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_processes_that_contend_all_get_on(path: Path) -> None:
    results: Any = spawn.Queue()
    barrier = spawn.Barrier(4)
    processes = [
        spawn.Process(target=workers.contend, args=(str(path), barrier, 2, results))
        for _ in range(4)
    ]
    for worker in processes:
        worker.start()
    counts = [results.get(timeout=90) for _ in processes]
    for worker in processes:
        worker.join(30)
        assert worker.exitcode == 0
    assert min(counts) > 0.2 * sum(counts) / len(counts), counts


def test_a_lock_held_for_long_is_waited_for_and_then_named(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = SQLiteMailbox[int]("jobs", path)
    box.send(0)
    hog = apsw.Connection(str(path))
    hog.execute("BEGIN IMMEDIATE")
    sender = threading.Thread(target=box.send, args=(1,))
    sender.start()
    sender.join(0.3)
    assert sender.is_alive()
    assert box.stats().pending == 1  # reading goes on
    hog.execute("ROLLBACK")
    sender.join(10)
    assert box.stats().pending == 2
    monkeypatch.setattr(opening, "PATIENCE", 0.1)
    hog.execute("BEGIN IMMEDIATE")
    for step in (lambda: box.send(2), lambda: box.receive(), lambda: box.purge()):
        with pytest.raises(MailboxConnectionError, match="locked by other processes"):
            step()
    hog.execute("ROLLBACK")
    hog.close()
    assert box.send(2)
    assert len(box.receive(max_messages=5)) == 3


def test_processes_may_create_the_file_at_once(path: Path) -> None:
    barrier = spawn.Barrier(6)
    processes = [
        spawn.Process(target=workers.open_and_send, args=(str(path), barrier)) for _ in range(6)
    ]
    for worker in processes:
        worker.start()
    for worker in processes:
        worker.join(60)
    assert [worker.exitcode for worker in processes] == [0] * 6
    assert SQLiteMailbox[int]("jobs", path).approximate_count() == 6


def test_parent_and_child_go_on_after_a_fork(path: Path) -> None:
    box = SQLiteMailbox[int]("jobs", path)
    box.send(0)
    box.receive(visibility_timeout=0)

    def child() -> None:
        for number in range(50):
            box.send(number)
            assert box.receive(wait_time_seconds=10)

    children = [threading.Thread(target=lambda: codes.append(in_fork(child))) for _ in range(3)]
    codes: list[int] = []
    for thread in children:
        thread.start()
        box.send(-1)
    for thread in children:
        thread.join(60)
    assert codes == [0, 0, 0]
    assert box.approximate_count() == 154
    assert box.store._database.read("PRAGMA integrity_check") == [("ok",)]


def test_a_child_uses_no_file_of_its_parent(path: Path) -> None:
    box = SQLiteMailbox[int]("jobs", path)
    box.send(0)
    waiter = threading.Thread(
        target=box.receive, kwargs={"wait_time_seconds": 60, "max_messages": 1}
    )
    box.receive()
    waiter.start()
    deadline = time.monotonic() + 30
    while not box.store._database.wake._bells and time.monotonic() < deadline:
        time.sleep(0.01)

    def child() -> None:
        files = [
            str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()
        ]
        assert not [name for name in files if "box.db" in name or "inotify" in name], files
        box.send(1)
        assert box.stats().pending == 1

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    assert in_fork(child) == 0
    waiter.join(30)  # the parent's waiter has heard the child
    assert not waiter.is_alive()


def test_a_fork_waits_for_transactions_of_other_threads(path: Path) -> None:
    database = open_database(path)
    box = SQLiteMailbox[int]("jobs", database)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with box.store.together():
            box.send(1)
            inside.set()
            leave.wait(0.2)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(10)
    assert in_fork(lambda: box.receive()[0].acknowledge()) == 0
    holder.join(10)
    assert box.approximate_count() == 0
    database.close()


def test_a_child_forked_inside_a_transaction_is_told_so(path: Path) -> None:
    box = SQLiteMailbox[int]("jobs", path)

    def child() -> None:
        with pytest.raises(MailboxConnectionError, match="forked inside a transaction"):
            box.send(2)

    with box.store.together():
        box.send(1)
        assert in_fork(child) == 0
    assert [message.body for message in box.receive(max_messages=5)] == [1]


def test_threads_share_one_database(path: Path) -> None:
    box = SQLiteMailbox[int]("jobs", path, durability="normal")
    seen: list[int] = []

    def work(offset: int) -> None:
        for number in range(100):
            box.send(offset + number)
        for _ in range(100):
            for message in box.receive(wait_time_seconds=5):
                seen.append(message.body)
                message.acknowledge()

    threads = [threading.Thread(target=work, args=(1000 * number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(seen) == len(set(seen)) == 800
    assert box.approximate_count() == 0


def test_databases_of_a_path_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "box.db")
    boxes = [
        SQLiteMailbox[int]("jobs", path) for path in ("box.db", tmp_path / "box.db", "link.db")
    ]
    databases: set[Database] = {box.store._database for box in boxes}
    assert len(databases) == 1
