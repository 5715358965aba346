"""SQLite: with the real clock and inotify, and with a fake clock and polling."""

import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

from weakincentives.contrib.mailbox import SQLiteMailbox, SQLiteReplyStore
from weakincentives.contrib.mailbox.contract import MailboxContract, ReplyStoreContract
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.sqlite.signals import PollingSignal
from weakincentives.contrib.mailbox.testing import FakeClock


class File:
    """A file in a directory that vanishes with the test."""

    @cached_property
    def directory(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory()

    @cached_property
    def database(self) -> Database:
        return open_database(Path(self.directory.name) / "box.db", "normal")

    def clean_up(self) -> None:
        self.database.close()
        self.directory.cleanup()


class FakeTimeFile(File):
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


class TestSQLite(File, MailboxContract):
    def make_mailbox(self, name: str, **options: Any) -> SQLiteMailbox[Any, Any]:
        return SQLiteMailbox(name, self.database, **options)


class TestSQLiteFakeTime(FakeTimeFile, MailboxContract):
    fake_clock = True
    moment = 1
    model_examples = 100

    def make_mailbox(self, name: str, **options: Any) -> SQLiteMailbox[Any, Any]:
        return SQLiteMailbox(name, self.database, **options)


class TestSQLiteReplyStore(File, ReplyStoreContract):
    def make_reply_store(self) -> Any:
        return SQLiteReplyStore(self.database)


class TestSQLiteReplyStoreFakeTime(FakeTimeFile, ReplyStoreContract):
    fake_clock = True
    moment = 1

    def make_reply_store(self) -> Any:
        return SQLiteReplyStore(self.database)
