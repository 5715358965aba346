"""Several processes on one file: contention, fairness and fork."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import apsw
import pytest

from testkit.forked import context
from testkit.forks import in_fork
from testkit.interrupts import sparing_coverage
from testkit.waiting import eventually
from tests.backends.sqlite import workers
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite import connection as sqlite_connection
from weakincentives.contrib.mailbox.sqlite.registry import open_database, shared_database
from weakincentives.runtime.mailbox import MailboxConnectionError


def test_processes_that_contend_all_get_on(path: Path) -> None:
    results: Any = context.Queue()
    barrier = context.Barrier(4)
    processes = [
        context.Process(target=workers.contend, args=(str(path), barrier, 2, results))
        for _ in range(4)
    ]
    for worker in processes:
        worker.start()
    counts = [results.get(timeout=90) for _ in processes]
    for worker in processes:
        worker.join(120)
        assert worker.exitcode == 0
    # One that starves gets next to nothing; a busy machine alone makes some slower than others.
    assert min(counts) > 0.05 * sum(counts) / len(counts), counts


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
    sender.join(60)
    assert box.stats().pending == 2
    monkeypatch.setattr(sqlite_connection, "LOCKED_SECONDS", 0.1)
    hog.execute("BEGIN IMMEDIATE")
    for step in (lambda: box.send(2), lambda: box.receive(), lambda: box.purge()):
        with pytest.raises(MailboxConnectionError, match="locked by other processes"):
            step()
    hog.execute("ROLLBACK")
    hog.close()
    assert box.send(2)
    assert len(box.receive(max_messages=5)) == 3


def test_processes_may_create_the_file_at_once(path: Path) -> None:
    barrier = context.Barrier(6)
    processes = [
        context.Process(target=workers.open_and_send, args=(str(path), barrier)) for _ in range(6)
    ]
    for worker in processes:
        worker.start()
    for worker in processes:
        worker.join(120)
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
        thread.join(120)
    assert codes == [0, 0, 0]
    assert box.approximate_count() == 154
    assert box.store._database.read("PRAGMA integrity_check") == [("ok",)]


def test_threads_may_fork_at_once(path: Path) -> None:
    box = SQLiteMailbox[int]("jobs", path)
    barrier = threading.Barrier(8)

    def fork_often() -> None:
        barrier.wait(120)
        for _ in range(10):
            codes.append(in_fork(lambda: box.send(1)))

    codes: list[int] = []
    threads = [threading.Thread(target=fork_often, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert codes == [0] * 80
    # In a thread of its own, so that a lock which nobody lets go of fails this test alone.
    counted: list[int] = []
    counting = threading.Thread(target=lambda: counted.append(box.stats().pending), daemon=True)
    counting.start()
    counting.join(60)
    assert counted == [80]


def test_a_child_uses_no_file_of_its_parent(path: Path) -> None:
    box = SQLiteMailbox[int]("jobs", path)
    box.send(0)
    waiter = threading.Thread(
        target=box.receive, kwargs={"wait_time_seconds": 60, "max_messages": 1}
    )
    box.receive()
    waiter.start()
    eventually(lambda: box.store._database.wake._bells)

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
    waiter.join(120)  # the parent's waiter has heard the child
    assert not waiter.is_alive()


def test_a_fork_waits_for_transactions_of_other_threads(path: Path) -> None:
    database = open_database(path)
    box = SQLiteMailbox[int]("jobs", database)
    box.send(1)
    inside, leave = threading.Event(), threading.Event()

    def hold(connection: apsw.Connection) -> None:
        connection.execute("UPDATE waiting SET nacks = 7")
        inside.set()
        leave.wait(0.2)

    holder = threading.Thread(target=database.transact, args=(hold,))
    holder.start()
    inside.wait(60)

    def child() -> None:
        (message,) = box.receive()
        assert message.nack_count == 7
        message.acknowledge()

    assert in_fork(child) == 0
    holder.join(60)
    assert box.approximate_count() == 0
    database.close()


class Announcing:
    """A lock that tells when somebody asks for it by `acquire`, as a fork does."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self.asked = threading.Event()
        self.release = lock.release
        self._is_owned = lock._is_owned

    def acquire(self) -> bool:
        self.asked.set()
        return bool(self._lock.acquire())

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


@pytest.mark.parametrize("how", ["collected", "closed"])
def test_a_database_may_go_inside_a_step_while_another_thread_forks(path: Path, how: str) -> None:
    kept, others = shared_database(path), [shared_database(path)]
    lock = kept.file.lock = Announcing(kept.file.lock)
    inside = threading.Event()

    def let_go(connection: apsw.Connection) -> None:
        inside.set()
        lock.asked.wait(30)
        if how == "closed":  # as a signal handler would
            others[0].close()
        others.clear()

    def fork() -> None:
        inside.wait(30)
        codes.append(in_fork(lambda: None))

    codes: list[int] = []
    # Daemons, so that threads which wait for each other forever fail this test alone.
    threads = [
        threading.Thread(target=kept.transact, args=(let_go,), daemon=True),
        threading.Thread(target=fork, daemon=True),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert codes == [0]
    assert lock.asked.is_set()
    kept.close()


def test_a_child_forked_inside_a_step_is_told_so_and_the_parent_goes_on(path: Path) -> None:
    database = open_database(path)
    box = SQLiteMailbox[int]("jobs", database)
    box.send(1)

    def child() -> None:
        with pytest.raises(MailboxConnectionError, match="forked in the middle of a step"):
            box.send(2)

    def fork(connection: apsw.Connection) -> int:
        connection.execute("UPDATE waiting SET nacks = 7")
        return in_fork(child)

    assert database.transact(fork) == 0
    assert [message.nack_count for message in box.receive(max_messages=5)] == [7]
    database.close()


def test_a_child_that_goes_on_with_the_step_it_was_forked_in_harms_nobody(path: Path) -> None:
    database = open_database(path)
    box = SQLiteMailbox[int]("jobs", database)
    box.send(1)
    forked: list[int] = []

    def fork(connection: apsw.Connection) -> None:
        connection.execute("UPDATE waiting SET nacks = nacks + 1")
        forked.append(os.fork())

    refused = False
    try:
        database.transact(fork)
    except MailboxConnectionError:
        refused = True
    finally:
        if forked == [0]:
            os._exit(0 if refused else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(forked[0], 0)[1]) == 0
    assert not refused
    assert [message.nack_count for message in box.receive(max_messages=5)] == [1]
    assert box.store._database.read("PRAGMA integrity_check") == [("ok",)]
    database.close()


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
        thread.join(120)
    assert len(seen) == len(set(seen)) == 800
    assert box.approximate_count() == 0


def test_databases_of_a_path_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link.db").symlink_to(tmp_path / "box.db")
    boxes = [
        SQLiteMailbox[int]("jobs", path) for path in ("box.db", tmp_path / "box.db", "link.db")
    ]
    assert len({box.store._database.file for box in boxes}) == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_fork_that_a_signal_interrupts_takes_and_leaves_every_lock(path: Path) -> None:
    database = open_database(path)
    box = SQLiteMailbox[int]("jobs", database)
    box.send(1)
    inside, interrupted = threading.Event(), threading.Event()

    def hold(connection: apsw.Connection) -> None:
        connection.execute("UPDATE waiting SET nacks = 7")
        inside.set()
        interrupted.wait(60)

    def interrupt(number: int, frame: object) -> None:
        interrupted.set()
        raise KeyboardInterrupt

    holder = threading.Thread(target=database.transact, args=(hold,), daemon=True)
    holder.start()
    inside.wait(60)
    before = signal.signal(signal.SIGALRM, sparing_coverage(interrupt))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)  # while the fork waits for the holder
        code = in_fork(lambda: _check_nothing_open(path))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted.is_set()
    assert code == 0
    holder.join(60)
    codes: list[int] = []
    thread = threading.Thread(
        target=lambda: codes.append(in_fork(lambda: box.send(2))), daemon=True
    )
    thread.start()
    thread.join(120)
    assert codes == [0]  # another thread can fork, and its child can use the file
    assert [seen.nack_count for seen in box.peek()] == [7, 0]
    database.close()


def _check_nothing_open(path: Path) -> None:
    """Make sure, where the system tells, that this process has no part of a file open."""
    files = Path("/proc/self/fd")
    if files.exists():
        names = [str(link.readlink()) for link in files.iterdir() if link.is_symlink()]
        assert not [name for name in names if name.startswith(str(path))], names
