"""The steps that a user of a file takes: single statements, transactions, reads."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import apsw

from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
)

from .errors import translated
from .file import FULL, NORMAL, File
from .unreadable import mend_texts
from .wake import Key, Wake

__all__ = ["Database"]

V = TypeVar("V")

LEVELS = {"full": FULL, "normal": NORMAL}


class Database:
    """One user's access to a file that this process may use elsewhere too.

    Each step is as durable as this user asked for, whatever other users chose. If a signal handler
    takes a step while it interrupts another one, that is a separate step, or it raises
    `ReentrantStepError` and changes nothing.
    """

    def __init__(
        self, file: File, durability: str, leave: Callable[["Database", File], None]
    ) -> None:
        self._file: File | None = file
        self._leave = leave
        self.path = file.path
        self.clock = file.clock
        self.time = file.time
        self.level = LEVELS[durability]

    def close(self) -> None:
        """Leave the file; its last user closes it."""
        file, self._file = self._file, None
        if file is not None:
            file.wake.ring_all()  # so that waiters of this database notice that it is closed
            self._leave(self, file)

    @property
    def file(self) -> File:
        """The file; raises `MailboxClosedError` if this is closed."""
        if self._file is None:
            raise MailboxClosedError(f"{self.path} was closed")
        return self._file

    @property
    def wake(self) -> Wake:
        """Wakes waiting consumers and callers of the file."""
        return self.file.wake

    def notify(self, news: Key, times: int) -> None:
        """Wake the waiters for ``news`` after a commit. This never fails, even if another thread
        has closed this database meanwhile."""
        file = self._file
        if file is not None:
            file.wake.notify(news, times)

    def shares(self, other: "Database") -> bool:
        """Return whether one transaction here can include steps of another database, as durably."""
        return self._file is not None and self._file is other._file and other.level <= self.level

    def check_open(self) -> None:
        """Raise if no step can be taken here."""
        self.file.check_open()

    def insert(self, sql: str, arguments: Sequence[Any], news: Key) -> bool:
        """Insert a row in its own transaction, then wake the waiters for ``news``.

        Return False if the statement has no place for it, because its queue was deleted.
        """
        file = self._file or self.file
        if file.lock._is_owned():
            file.check_reentry()
        with file.lock:
            file.is_fragile = True
            writer = file.ready(self.level)
            file.is_fragile = False
            try:
                writer.execute(sql, arguments)
            except apsw.MismatchError:
                return False
            except apsw.Error as error:
                raise translated(error, self.path, writer.system_errno) from error
        file.wake.notify(news, 1)
        return True

    def change(
        self,
        sql: str,
        arguments: Sequence[Any],
        news: Key | None = None,
        *,
        lasting: bool = True,
    ) -> int:
        """Run one statement as a transaction of its own, and return how many rows it changed.

        If there are any, the waiters for ``news`` are woken. If ``lasting`` is False, a power
        failure before the next commit may undo the change.
        """
        file = self._file or self.file
        if file.lock._is_owned():
            file.check_reentry()
        with file.lock:
            file.is_fragile = True  # until the count is read
            writer = file.ready(self.level if lasting else NORMAL)
            try:
                writer.execute(sql, arguments)
                changed = writer.changes()
            except apsw.Error as error:
                raise translated(error, self.path, writer.system_errno) from error
            file.is_fragile = False
        if news is not None and changed:
            file.wake.notify(news, changed)
        return changed

    def transact(self, work: Callable[..., V], *arguments: Any, lasting: bool = True) -> V:
        """Return what ``work`` makes of a connection and the arguments: all of it, or nothing.

        It must not do anything but work on the connection: the file's write lock is held meanwhile.
        ``lasting`` is as for `change`.
        """
        file = self._file or self.file
        if file.lock._is_owned():
            file.check_reentry()
        with file.lock:
            file.is_fragile = True
            writer = file.ready(self.level if lasting else NORMAL)
            try:
                writer.execute("BEGIN IMMEDIATE")
                file.is_fragile = False  # from here on, in_transaction tells
                result = work(writer, *arguments)
                writer.execute("COMMIT")
                return result
            except apsw.Error as error:
                raise translated(error, self.path, writer.system_errno) from error
            except UnicodeDecodeError as error:
                if work is mend_texts:
                    raise
                reason = error
            finally:
                if writer.in_transaction:
                    file.undo(writer)
        self._mend_texts(reason)
        return self.transact(work, *arguments, lasting=lasting)

    def fetch(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Run one statement that changes something and returns rows."""
        return self.transact(_fetch, sql, arguments)

    def read(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Run one query; it sees what is committed."""
        try:
            return self.file.read(sql, tuple(arguments))
        except UnicodeDecodeError as error:
            self._mend_texts(error)
        return self.read(sql, arguments)

    def _mend_texts(self, reason: UnicodeDecodeError) -> None:
        """Turn texts that are not UTF-8 into bytes, which can be read; raise if there are none."""
        if not self.transact(mend_texts):
            raise MailboxConnectionError(f"{self.path}: {reason}") from reason


def _fetch(connection: apsw.Connection, sql: str, arguments: Sequence[Any]) -> list[Any]:
    return connection.execute(sql, arguments).fetchall()


def check_durability(durability: object) -> str:
    """Check ``durability``."""
    if durability not in LEVELS:
        raise InvalidParameterError(
            f"durability must be 'full' or 'normal', not {durability!r:.100}"
        )
    return str(durability)
