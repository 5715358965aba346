"""A SQLite file: with the real clock and inotify, and with a fake clock and polling."""

import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from weakincentives.contrib.mailbox import SQLiteMailbox, SQLiteReplyStore
from weakincentives.contrib.mailbox.sqlite import due
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.inotify import PollingSignal
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.testing import FakeClock


class File:
    """A file in a directory that vanishes with the test."""

    @cached_property
    def directory(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory()

    @cached_property
    def database(self) -> Database:
        return open_database(Path(self.directory.name) / "box.db", "normal")

    def make_mailbox(self, name: str, **options: Any) -> SQLiteMailbox[Any, Any]:
        return SQLiteMailbox(name, self.database, **options)

    def make_reply_store(self) -> Any:
        return SQLiteReplyStore(self.database)

    def clean_up(self) -> None:
        self.database.close()
        self.directory.cleanup()


class FakeTime(File):
    """Time is a fake, and whoever waits polls."""

    fake_clock = True
    moment = 1

    @cached_property
    def clock(self) -> FakeClock:
        return FakeClock()

    @cached_property
    def database(self) -> Database:
        return open_database(
            Path(self.directory.name) / "box.db",
            "normal",
            clock=self.clock,
            boot_id="this boot",
            make_signal=lambda _, version: PollingSignal(version),
        )

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)


class IndexedLeases(FakeTime):
    """Every lease is put into the index at once, as those are that last where there are many."""

    @pytest.fixture(autouse=True)
    def index_at_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("FEW", "INDEX_AFTER_US", "WALK_US"):
            monkeypatch.setattr(due, name, 0)
