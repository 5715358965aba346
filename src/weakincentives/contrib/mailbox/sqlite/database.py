"""One SQLite file in this process: two connections, transactions, and who is to be woken.

All threads share one connection for writing, under a lock: SQLite lets one writer in at a time
anyway, and a lock is fairer than its busy handler. A second one serves reads, so that a look does
not wait for somebody else's fsync.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import apsw

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxError,
)

from .era import Era, FileClock, kernel_boot_id, next_era
from .opening import identity_of, make_wake_file, open_connection, wake_path
from .signals import Signal, best_signal
from .trouble import translated
from .wake import Key, Wake

__all__ = ["Database", "Transaction"]

DURABILITIES = ("full", "normal")
LOOK_EVERY = 1.0
"""After so many seconds a step makes sure that the file is still the one that was opened."""

SignalMaker = Callable[[str, Callable[[], int]], Signal]


class Database:
    """A file, until it is closed or nobody refers to it any more."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        durability: str = "full",
        *,
        clock: Clock | None = None,
        boot_id: str | None = None,
        make_signal: SignalMaker = best_signal,
    ) -> None:
        if durability not in DURABILITIES:
            raise InvalidParameterError(
                f"durability must be 'full' or 'normal', not {durability!r:.100}"
            )
        if Path(path).name == ":memory:":
            raise InvalidParameterError(
                "path must be a file; for mailboxes in memory use memory:// or InMemoryMailbox"
            )
        self.path = str(Path(path).absolute())
        self.durability = durability
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.time = FileClock(self.clock, kernel_boot_id() if boot_id is None else boot_id)
        self._make_signal = make_signal
        self._closed = False
        self._stranded = False
        self.gone = False
        """The file was removed or replaced under us."""
        self._start()
        with self._lock:
            self._open_writer()

    def _start(self) -> None:
        """Set up what must be new in a forked child too."""
        self._lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._writer: apsw.Connection | None = None
        self._reader: apsw.Connection | None = None
        self._depth = 0
        self._owner = 0
        self._doomed: BaseException | None = None
        self._news: list[tuple[Key, int]] = []
        self._wall_offset_us = 0
        self._identity: tuple[int, int] | None = None
        self._look_at = 0.0
        self._hasty = False
        self.wake = Wake(
            wake_path(self.path), weakref.WeakMethod(self._count), weakref.WeakMethod(self._signal)
        )

    def close(self) -> None:
        """Close the connections and wake everybody who waits."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self.close_connections()
        self.wake.close()

    def __del__(self) -> None:
        # Nobody has this database any more; the connections close as they are freed.
        if hasattr(self, "wake"):
            self.wake.close()

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a transaction."""
        return self._owner == threading.get_ident()

    @property
    def transaction(self) -> "Transaction":
        """All steps of this thread inside are one."""
        return Transaction(self)

    def change(
        self,
        sql: str,
        arguments: Sequence[Any],
        news: Key | None = None,
        *,
        lasting: bool = True,
    ) -> int:
        """Run one statement as a transaction of its own, or as part of this thread's.

        Returns how many rows it changed. If any, those who wait for ``news`` are told. What need
        not be ``lasting`` may be undone by a loss of power, until the next commit.
        """
        with self._lock:
            writer = self._writer or self._open_writer()
            if not self._depth:
                self._tidy(writer)
            try:
                if not lasting and not self._depth and self.durability == "full":
                    self._hasty = True
                    writer.execute("PRAGMA synchronous = NORMAL")
                writer.execute(sql, arguments)
            except apsw.Error as error:
                raise self._failed(error, writer) from error
            finally:
                if self._hasty:
                    self._slow_down(writer)
            changed = writer.changes()
            if news is not None and changed and self._depth:
                self._news.append((news, changed))
                return changed
        if news is not None and changed:
            self.wake.notify(news, changed)
        return changed

    def fetch(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Run one statement that changes something and returns rows."""
        with self.transaction as connection:
            return connection.execute(sql, arguments).fetchall()

    def read(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Run one query; inside a transaction of this thread it sees what that has done."""
        if self.in_transaction:
            return self.fetch(sql, arguments)
        return self.read_committed(sql, arguments)

    def read_committed(self, sql: str, arguments: Sequence[Any] = ()) -> list[Any]:
        """Run one query that sees nothing of a transaction in progress, not even of one's own."""
        with self._read_lock:
            reader = self._reader or self._open_reader()
            try:
                return reader.execute(sql, arguments).fetchall()
            except apsw.Error as error:
                raise translated(error, self.path) from error

    def announce(self, key: Key, times: int = 1) -> None:
        """Tell those who wait, once the transaction of this thread is committed."""
        if self.in_transaction:
            self._news.append((key, times))
        else:
            self.wake.notify(key, times)

    def note_wall_clock(self, connection: apsw.Connection) -> None:
        """Write down how the wall clock stands, if it has jumped; delays outlive a reboot by it."""
        offset = self.time.wall_offset_us()
        if abs(offset - self._wall_offset_us) > 1_000_000:
            connection.execute("UPDATE era SET wall_offset_us = ?", (offset,))
            self._wall_offset_us = offset

    def _tidy(self, writer: apsw.Connection) -> None:
        """See to it that a step may begin."""
        if writer.in_transaction:
            writer.execute("ROLLBACK")  # left behind by an interrupt between two steps
        if self._hasty:
            self._slow_down(writer)
        now = SystemClock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY
        try:
            self.gone = identity_of(self.path) != self._identity
        except OSError:
            return  # nobody can tell
        if self.gone:
            for connection in (writer, self._reader):
                if connection is not None:
                    # Closing would remove the journal by its name, and that may be another's now.
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            self.close_connections()
            self.check_open()

    def _slow_down(self, writer: apsw.Connection) -> None:
        """Sync at each commit again; an interrupt may have kept the last step from doing so."""
        if not writer.in_transaction:
            writer.execute("PRAGMA synchronous = FULL")
            self._hasty = False

    def close_connections(self) -> None:
        """Close the connections; the next step opens them again unless the database is closed."""
        with self._read_lock:
            reader, self._reader = self._reader, None
            if reader is not None:
                reader.close()
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    def before_fork(self) -> None:
        """Close the connections, so that no child inherits what it must neither use nor close."""
        self.wake.before_fork()
        self._lock.acquire()
        self._stranded = self._depth > 0
        if not self._stranded:
            self.close_connections()
        self._read_lock.acquire()

    def after_fork_in_parent(self) -> None:
        """Go on; the next step opens the connections again."""
        self._stranded = False
        self._read_lock.release()
        self._lock.release()
        self.wake.after_fork_in_parent()

    def after_fork_in_child(self) -> None:
        """Begin anew with locks that nobody holds and no thread."""
        self.wake.abandon()
        inherited = (self._writer, self._reader)
        self._start()
        if self._stranded:
            self._inherited = inherited  # closing them here would take the parent's locks away

    def _open_writer(self) -> apsw.Connection:
        self.check_open()
        connection = self._connect()
        try:
            self._begin_era(connection)
        except apsw.Error as error:
            connection.close()
            raise translated(error, self.path) from error
        self._writer = connection
        self._identity = identity_of(self.path)
        self._look_at = SystemClock.monotonic() + LOOK_EVERY
        return connection

    def _open_reader(self) -> apsw.Connection:
        self.check_open()
        self._reader = self._connect()
        return self._reader

    def _connect(self) -> apsw.Connection:
        try:
            connection = open_connection(self.path, self.durability)
        except apsw.Error as error:
            raise translated(error, self.path) from error
        make_wake_file(self.path)
        now_us: Callable[..., Any] = self.time.now_us
        connection.create_scalar_function("now_us", now_us, 0, deterministic=True)
        return connection

    def _begin_era(self, connection: apsw.Connection) -> None:
        """Set the file's clock going; after a reboot, end the leases of the boot before."""
        execute = connection.execute
        offset = self.time.wall_offset_us()
        former = self._era(connection)
        era = next_era(former, self.time.boot, offset)
        if era != former:
            execute("BEGIN IMMEDIATE")
            former = self._era(connection)
            era = next_era(former, self.time.boot, offset)
            self.time.shift_us = era.shift_us
            execute("INSERT OR REPLACE INTO era VALUES (1, ?, ?, ?)", era)
            if former is not None and former.boot != era.boot:
                execute("UPDATE held SET visible_us = now_us() WHERE leased = 1")
            execute("COMMIT")
        self.time.shift_us = era.shift_us
        self._wall_offset_us = era.wall_offset_us

    @staticmethod
    def _era(connection: apsw.Connection) -> Era | None:
        rows: list[Any] = connection.execute(
            "SELECT boot, shift_us, wall_offset_us FROM era"
        ).fetchall()
        return Era(*rows[0]) if rows else None

    def check_open(self) -> None:
        """Raise if no step can be taken here."""
        if self._closed:
            raise MailboxClosedError(f"{self.path} was closed")
        if self.gone:
            raise MailboxConnectionError(
                f"{self.path} was removed or replaced while it was in use, and this step was not "
                "taken; open the mailbox anew, or restart this process"
            )
        if self._stranded:
            raise MailboxConnectionError(
                f"{self.path} cannot be used here: this process was forked inside a transaction; "
                "start it with 'spawn'"
            )

    def _failed(self, error: apsw.Error, connection: apsw.Connection) -> MailboxError:
        """Return what to raise; a step that failed takes the whole transaction with it."""
        reason = translated(error, self.path, connection.system_errno)
        if self._depth:
            self._doomed = reason
        elif connection.in_transaction:
            connection.execute("ROLLBACK")
        return reason

    def _count(self, keys: Iterable[Key]) -> list[tuple[Key, int]]:
        """Look up what has come for those who wait."""
        found = []
        for key in keys:
            rows = self.read(key[0], (key[1],))
            if rows and rows[0][0]:
                found.append((key, rows[0][0]))
        return found

    def _signal(self) -> Signal:
        return self._make_signal(wake_path(self.path), self._data_version)

    def _data_version(self) -> int:
        try:
            return int(self.read("PRAGMA data_version")[0][0])
        except MailboxError:
            return -1


class Transaction:
    """``with database.transaction as connection``: all or nothing; one inside another joins it."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def __enter__(self) -> apsw.Connection:
        database = self._database
        database._lock.acquire()
        try:
            writer = database._writer or database._open_writer()
            if not database._depth:
                database._tidy(writer)
            if not writer.in_transaction:
                writer.execute("BEGIN IMMEDIATE")
        except BaseException as error:
            database._lock.release()
            if isinstance(error, apsw.Error):
                raise translated(error, database.path) from error
            raise
        database._depth += 1
        database._owner = threading.get_ident()
        return writer

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        database = self._database
        writer = database._writer
        assert writer is not None
        news: list[tuple[Key, int]] = []
        try:
            if error is not None:
                if isinstance(error, apsw.Error):
                    raise database._failed(error, writer) from error
                database._doomed = error
            if database._depth == 1:
                news = self._finish(writer, error)
        finally:
            database._depth -= 1
            if not database._depth:
                database._owner = 0
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                if database._news or database._doomed is not None:
                    database._doomed, database._news = None, []
            database._lock.release()
        for key, times in news:
            database.wake.notify(key, times)

    def _finish(
        self, writer: apsw.Connection, error: BaseException | None
    ) -> list[tuple[Key, int]]:
        """Commit, unless a step has failed; return whom to tell."""
        database = self._database
        if database._doomed is None:
            try:
                writer.execute("COMMIT")
            except apsw.Error as refused:
                raise database._failed(refused, writer) from refused
            return database._news
        if error is None:
            raise database._doomed  # somebody swallowed it, but the step did not happen
        return []
