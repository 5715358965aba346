"""The journal stays short, also when SQLite cannot begin it anew by itself."""

from pathlib import Path
from typing import Any

import apsw
import pytest

from testkit.waiting import eventually
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite import connection as sqlite_connection
from weakincentives.contrib.mailbox.sqlite import file

MIB = 1024 * 1024


def size_of_journal(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


def reading(path: Path) -> apsw.Connection:
    """A reader that keeps the journal from being begun anew."""
    reader = apsw.Connection(str(path))
    reader.execute("BEGIN; SELECT count(*) FROM queue").fetchall()
    return reader


def test_a_journal_that_has_grown_is_emptied(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "JOURNAL_EVERY", 0.0)
    with SQLiteMailbox[str]("jobs", path, durability="normal") as box:
        box.send("first")
        reader = reading(path)
        for _ in range(40):
            box.send("x" * (MIB // 2))
        assert size_of_journal(path) > sqlite_connection.JOURNAL_BYTES
        reader.close()
        box.send("last")
        assert size_of_journal(path) < MIB


def test_a_reader_that_stays_fails_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file, "JOURNAL_EVERY", 0.0)
    monkeypatch.setattr(sqlite_connection, "JOURNAL_BYTES", 0)
    with SQLiteMailbox[int]("jobs", path, durability="normal") as box:
        box.send(0)
        reader = reading(path)
        for number in range(1, 5):
            box.send(number)
        assert box.stats().pending == 5
        reader.close()


def test_a_reader_that_stays_does_not_slow_down_every_step(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = []

    def shorten(*arguments: Any) -> bool:
        tries.append(1)
        return sqlite_connection.shorten_journal(*arguments)

    monkeypatch.setattr(sqlite_connection, "JOURNAL_BYTES", 0)
    monkeypatch.setattr(file, "shorten_journal", shorten)
    with SQLiteMailbox[int]("jobs", path, durability="normal") as box:
        box.send(0)
        reader = reading(path)
        tries.clear()
        eventually(lambda: box.send(1) and tries)
        for number in range(20):
            box.send(number)
        assert len(tries) < 10  # each takes a tenth of a second
        reader.close()
