"""One SQLite file, shared by all its users in this process: two connections and their locks.

All threads share one connection for writing, under a lock: SQLite lets one writer in at a time
anyway, and a lock is fairer than its busy handler. A second one is for reading, so that a read does
not wait for another thread's fsync.

A signal handler can run between any two calls of the main thread, and raise, take a step of its
own, or fork. So every change is undone by the frame that made it: a ``with`` releases each lock,
and a ``finally`` ends each transaction.
"""

import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import apsw

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.errors import (
    MailboxClosedError,
    MailboxConnectionError,
    MailboxError,
    ReentrantStepError,
)
from weakincentives.runtime.mailbox.seam.forks import take_locks
from weakincentives.runtime.mailbox.seam.step_threads import STEP_THREADS

from .clock import Era, FileClock, kernel_boot_id, next_era
from .connection import (
    BusyHandler,
    configure_journal,
    identity_of,
    make_wake_file,
    open_connection,
    shorten_journal,
    wake_path,
)
from .errors import translated
from .inotify import CommitSignal, best_signal
from .queries import QUERIES
from .unreadable import is_sound_era
from .wake import Key, Wake

__all__ = ["FULL", "NORMAL", "File", "SignalMaker"]

LOOK_EVERY = 1.0
"""Seconds after which a step checks that the file is still the one that was opened."""

JOURNAL_EVERY = 0.1
"""Seconds after which a step checks the length of the journal."""

JOURNAL_IN_USE = 20
"""`JOURNAL_EVERY` is multiplied by this while a reader prevents emptying the journal."""

NORMAL, FULL = 1, 2
"""SQLite's numbers for ``synchronous``; with `FULL`, a commit ends with an fsync."""

SignalMaker = Callable[[str, Callable[[], int]], CommitSignal]


class FileKey:
    """Identifies a file; the threads that serve the file end when this is collected."""


class File:
    """The connections to a file, shared by its users; the last one to leave closes them."""

    def __init__(
        self,
        path: str,
        *,
        clock: Clock | None = None,
        boot_id: str | None = None,
        make_signal: SignalMaker = best_signal,
    ) -> None:
        self.path = path
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.time = FileClock(self.clock, kernel_boot_id() if boot_id is None else boot_id)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        """The open `Database` objects of the file; the registry maintains this set."""
        self.key = FileKey()
        """Identifies the file without keeping it open."""
        self.identity: tuple[int, int] | None = None
        self.gone = False
        """Whether the file was removed or replaced while it was open."""
        self._make_signal = make_signal
        self._closed = False
        self._stranded = False
        self._start()

    def _start(self) -> None:
        """Set up what must be new in a forked child too."""
        # Reentrant, so that a signal handler can see that its own thread holds the lock, instead of
        # waiting for the frame that it interrupts.
        self.lock: Any = threading.RLock()
        self.read_lock: Any = threading.RLock()
        self.writer: apsw.Connection | None = None
        self.reader: apsw.Connection | None = None
        self.is_fragile = False
        """Whether a nested step would spoil the current one although SQLite would allow it.

        It is read only if the current thread already holds the lock, so a stale value that an
        interrupt left behind does no harm.
        """
        self._busy_handler = BusyHandler()
        self._level = self._strictest = 0
        self._noted_offset_us: int | None = None
        self._seen_us = 0
        self._look_at = self._journal_at = 0.0
        self.wake = Wake(
            wake_path(self.path), weakref.WeakMethod(self._count), weakref.WeakMethod(self._signal)
        )

    def open(self) -> None:
        """Open the connection for writing; raise at once if the file cannot be used."""
        with self.lock:
            self.is_fragile = True
            if self.writer is None:
                self._open_writer()

    def close(self) -> None:
        """Close the connections and wake all waiters."""
        inside = self.lock._is_owned() or self.read_lock._is_owned()
        self._closed = self._busy_handler.over = True
        with self.lock:
            if inside:
                # This interrupts a step of its own thread; the connections close when that step
                # ends.
                self.writer = self.reader = None
            else:
                self.close_connections()
        self.wake.close()
        STEP_THREADS.release(self.key)

    def __del__(self) -> None:
        # No user is left. The collecting thread may be inside a step of another file, and another
        # thread may be forking, so this takes no lock and waits for nothing.
        self.wake.retire()
        self._spare_journal(self.reader, self.writer)

    def ready(self, level: int) -> apsw.Connection:
        """Return the writing connection, set to this durability; the caller must hold ``lock``."""
        writer = self.writer or self._open_writer()
        if writer.in_transaction:
            writer.execute("ROLLBACK")  # an interrupt left it open
        now = SystemClock.monotonic()
        if now >= self._look_at:
            self._look()
        if now >= self._journal_at:
            short = shorten_journal(writer, self.path, self._busy_handler)
            pause = JOURNAL_EVERY if short else JOURNAL_EVERY * JOURNAL_IN_USE
            self._journal_at = SystemClock.monotonic() + pause
        if level != self._level:
            self._set_level(writer, level)
        return writer

    def ready_to_read(self) -> apsw.Connection:
        """Return the connection for reading; the caller must hold ``read_lock``."""
        reader = self.reader or self._open_reader()
        if SystemClock.monotonic() >= self._look_at:
            self._look()
        return reader

    def check_reentry(self) -> None:
        """Refuse a step if this thread, which holds the lock, is in the middle of another one."""
        writer = self.writer
        if (
            self.is_fragile
            or self._busy_handler.waiting
            or (writer is not None and (writer.in_transaction or _writes(writer)))
        ):
            raise ReentrantStepError(
                f"{self.path}: a signal handler or destructor has interrupted a step of its own "
                "thread on this file, and nothing was done; set a flag there, and act on it later"
            )

    def undo(self, writer: apsw.Connection) -> None:
        """Roll back the transaction in progress."""
        self._noted_offset_us, self._seen_us = None, 0
        writer.execute("ROLLBACK")

    def note_wall_clock(self, writer: apsw.Connection) -> None:
        """Store the time and the wall clock's offset, which delays need after a reboot."""
        now = self.time.now_us()
        if now - self._seen_us > 1_000_000:
            writer.execute(QUERIES["note_time"], (now,))
            self._seen_us = now
        offset, noted = self.time.wall_offset_us(), self._noted_offset_us
        if noted is None or abs(offset - noted) > 1_000_000:
            writer.execute(QUERIES["note_wall_offset"], (offset,))
            self._noted_offset_us = offset

    def close_connections(self) -> None:
        """Close the connections; the next step opens them again unless the file is closed."""
        with self.lock, self.read_lock:
            reader, self.reader = self.reader, None
            writer, self.writer = self.writer, None
            self._spare_journal(reader, writer)
            if reader is not None:
                reader.close()
            if writer is not None:
                writer.close()

    def _spare_journal(self, *connections: apsw.Connection | None) -> None:
        """If the file is gone, do not touch the journal on close: it may belong to a new file."""
        if self._is_gone():
            for connection in connections:
                if connection is not None:
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)

    def check_open(self) -> None:
        """Raise if the file is closed, gone, or not usable in this process."""
        if self._closed:
            raise MailboxClosedError(f"{self.path} was closed")
        if self.gone:
            raise MailboxConnectionError(
                f"{self.path} was removed or replaced while it was in use, and nothing was done "
                "now; open the mailbox again, or restart this process"
            )
        if self._stranded:
            raise MailboxConnectionError(
                f"{self.path} cannot be used here: this process was forked in the middle of a step "
                "on it; start it with 'spawn'"
            )

    def before_fork(self, taken: list[Any]) -> None:
        """Close the connections, so that no child inherits what it must neither use nor close.

        The locks that this takes are added to ``taken``.
        """
        # A signal handler may fork inside a step; that step continues in the parent.
        self._stranded = self.lock._is_owned() or self.read_lock._is_owned()
        take_locks(taken, self.lock, self.read_lock)
        if not self._stranded:
            self.close_connections()
        # Last, because a signal handler inside a step may need it; its holder takes no other lock.
        self.wake.before_fork(taken)

    def after_fork_in_parent(self) -> None:
        """Continue; the next step opens the connections again."""
        self._stranded = False

    def after_fork_in_child(self) -> None:
        """Start again with new locks, no connections and no thread."""
        self.wake.abandon()
        inherited = [one for one in (self.writer, self.reader) if one is not None]
        busy_handler = self._busy_handler
        self._start()
        if self._stranded:
            # The interrupted step may continue here too, in parallel with the parent, and must fail
            # soon. It can only be in a statement that calls now_us() or the busy handler.
            busy_handler.stranded = self.time.stranded = True
            for connection in inherited:
                connection.exec_trace = self._refuse
            self._inherited = inherited  # closing them here would disturb the parent

    def _refuse(self, *_: object) -> bool:
        self.check_open()
        return True

    def _set_level(self, writer: apsw.Connection, level: int) -> None:
        self._level = 0  # unknown if this is interrupted
        if level > self._strictest:
            configure_journal(writer, level == FULL)
            self._strictest = level
        writer.execute(f"PRAGMA synchronous = {level}")
        self._level = level

    def _look(self) -> None:
        """Check that the file is still the one that was opened."""
        self._look_at = 0.0
        if self._is_gone():
            self.gone = True
            self.check_open()
        self._look_at = SystemClock.monotonic() + LOOK_EVERY

    def _is_gone(self) -> bool:
        try:
            return self.gone or identity_of(self.path) != self.identity
        except OSError:
            return False  # unknown, so assume not

    def _open_writer(self) -> apsw.Connection:
        self.check_open()
        connection = self._connect(self._busy_handler)
        try:
            self._begin_era(connection)
        except apsw.Error as error:
            connection.close()
            raise translated(error, self.path) from error
        self.identity = identity_of(self.path)
        self._level = self._strictest = 0
        self._look_at = SystemClock.monotonic() + LOOK_EVERY
        self.writer = connection
        return connection

    def _open_reader(self) -> apsw.Connection:
        self.check_open()
        reader = self._connect(BusyHandler())
        if self.identity is not None:
            self._look()
        self.reader = reader
        return reader

    def _connect(self, busy_handler: BusyHandler) -> apsw.Connection:
        try:
            connection = open_connection(self.path, busy_handler)
        except apsw.Error as error:
            raise translated(error, self.path) from error
        make_wake_file(self.path)
        now_us: Callable[..., Any] = self.time.now_us
        connection.create_scalar_function("now_us", now_us, 0, deterministic=True)
        return connection

    def _begin_era(self, connection: apsw.Connection) -> None:
        """Start the file's clock; after a reboot, end all earlier leases."""
        execute = connection.execute
        offset = self.time.wall_offset_us()
        former = self._era(connection)
        steady = self.time.steady_us()
        era = next_era(former, self.time.boot, offset, steady)
        if era != former:
            execute("BEGIN IMMEDIATE")
            former = self._era(connection)
            era = next_era(former, self.time.boot, offset, steady)
            self.time.shift_us = era.shift_us
            execute(QUERIES["set_era"], era)
            if former is not None and former.boot != era.boot:
                execute(QUERIES["end_all_leases"])
            execute("COMMIT")
        self.time.shift_us = era.shift_us
        self._noted_offset_us = era.wall_offset_us

    @staticmethod
    def _era(connection: apsw.Connection) -> Era | None:
        try:
            rows: list[Any] = connection.execute(QUERIES["era"]).fetchall()
        except UnicodeDecodeError:
            return None
        return Era(*rows[0]) if rows and is_sound_era(rows[0]) else None

    def read(self, sql: str, arguments: tuple[Any, ...] = ()) -> list[Any]:
        """Run one query; it sees what is committed."""
        with self.read_lock:
            try:
                return self.ready_to_read().execute(sql, arguments).fetchall()
            except apsw.Error as error:
                raise translated(error, self.path) from error

    def _count(self, keys: Iterable[Key]) -> list[tuple[Key, int]]:
        """Return the keys for which something has arrived, with the counts."""
        found = []
        for key in keys:
            rows = self.read(key[0], (key[1],))
            if rows and rows[0][0]:
                found.append((key, rows[0][0]))
        return found

    def _signal(self) -> CommitSignal:
        return self._make_signal(wake_path(self.path), self._data_version)

    def _data_version(self) -> int:
        try:
            return int(self.read("PRAGMA data_version")[0][0])
        except MailboxError:
            return -1


def _writes(connection: apsw.Connection) -> bool:
    """Return whether a single statement is running that commits by itself."""
    return connection.txn_state("main") == apsw.SQLITE_TXN_WRITE
