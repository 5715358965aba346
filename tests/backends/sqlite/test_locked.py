"""A file that another process keeps locked."""

import threading
import time
from pathlib import Path

import pytest

from testkit.locks import locked
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite import connection as sqlite_connection
from weakincentives.runtime.mailbox import MailboxClosedError, MailboxConnectionError


class Senders:
    """Threads that send one message each, and what became of them."""

    def __init__(self, box: SQLiteMailbox[str], count: int) -> None:
        self.errors: list[Exception] = []
        self._box = box
        self._threads = [threading.Thread(target=self._send, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _send(self) -> None:
        try:
            self._box.send("b")
        except Exception as error:
            self.errors.append(error)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive()


def test_threads_that_wait_in_turn_wait_no_longer_than_one(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connection, "LOCKED_SECONDS", 2.0)
    monkeypatch.setattr(sqlite_connection, "NEXT_TURN", 0.1)
    with SQLiteMailbox[str]("jobs", path) as box:
        box.send("a")
        with locked(path):
            began = time.monotonic()
            senders = Senders(box, 8)
            senders.join()
            assert time.monotonic() - began < 8 * 2.0  # what it would take one after the other
        assert [type(error) for error in senders.errors] == [MailboxConnectionError] * 8
        box.send("c")
        assert box.stats().pending == 2


def test_closing_waits_for_nobody_elses_lock(path: Path) -> None:
    backend = connect(f"sqlite:///{path}")
    box = backend.mailbox("jobs")
    box.send("a")
    with locked(path):
        senders = Senders(box, 3)
        eventually(lambda: box.store._database.file._busy_handler._until)
        began = time.monotonic()
        backend.close()
        senders.join()
        assert time.monotonic() - began < sqlite_connection.LOCKED_SECONDS / 3
    assert [type(error) for error in senders.errors] == [MailboxClosedError] * 3
    with SQLiteMailbox[str]("jobs", path) as again:
        assert again.stats().pending == 1
