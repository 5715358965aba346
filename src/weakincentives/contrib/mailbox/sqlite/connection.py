"""Opens a connection to a file; refuses files of other programs and of newer versions."""

import math
import os
import random
import stat
import sys
import time
from pathlib import Path
from urllib.parse import quote

import apsw

from weakincentives.runtime.mailbox.errors import MailboxClosedError, MailboxConnectionError

from .queries import QUERIES, read_script

__all__ = ["open_connection", "wake_path"]

APPLICATION_ID = int.from_bytes(b"wink", "big")
# The nth script takes a file from version n - 1 to version n.
SCRIPTS = ("schema.sql", "version_2.sql", "version_3.sql", "version_4.sql")
LOCKED_SECONDS = 30.0
NEXT_TURN = 1.0
BRIEFLY = 0.1
JOURNAL_BYTES = 16 * 1024 * 1024
"""A journal larger than this is emptied as soon as possible."""
PAGE_SIZE = 2048


def wake_path(path: str) -> str:
    """Return the file that waiters watch."""
    return f"{path}-wake"


def open_connection(path: str, busy_handler: "BusyHandler") -> apsw.Connection:
    """Open a file, creating or upgrading it if needed; raises `apsw.Error` or a `MailboxError`."""
    name = f"file:{quote(path)}"
    if _is_new(path):
        make_wake_file(path)
        # SQLite creates the file with the mode of the wake file, so that others can never read it.
        name += f"?modeof={quote(wake_path(path))}"
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(name, flags=flags)
    try:
        _prepare(connection, path, busy_handler)
    except BaseException:
        connection.close()
        raise
    return connection


def identity_of(path: str) -> tuple[int, int] | None:
    """Return the device and inode of a file; None if it does not exist."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def make_wake_file(path: str) -> None:
    """Make the file that waiters watch, as private as the database itself."""
    place, wake = Path(path), Path(wake_path(path))
    if place.exists() and wake.exists():
        return
    try:
        mode = stat.S_IMODE(place.stat().st_mode) if place.exists() else 0o600
        file = os.open(wake, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        try:
            os.fchmod(file, mode)
            os.pwrite(file, b"\n", 0)  # one byte, because reading it is the wake-up signal
        finally:
            os.close(file)
    except OSError as error:
        raise MailboxConnectionError(f"{wake} cannot be created: {error.strerror}") from error


class BusyHandler:
    """Waits for a lock in random small steps, so that no process starves; gives up after 30 s.

    The threads of a process wait one after another. If one has just given up, the next has been
    waiting for as long, and gives up soon too.
    """

    def __init__(self) -> None:
        self._until = 0.0
        self._gave_up = -math.inf
        self.waiting = False
        """Whether SQLite is calling this now; its connection cannot be used meanwhile."""
        self.stranded = False
        """Whether this child was forked during the wait; the connection belongs to its parent."""
        self.over = False
        """Whether the file is being closed, so that waiting is useless."""
        self.brief = False
        """Whether the current step is optional, and gives up soon."""

    def __call__(self, attempt: int) -> bool:
        self.waiting = True
        try:
            if self.over:
                raise MailboxClosedError("the file was closed before it could be written")
            now = time.monotonic()
            if attempt == 0:
                self._until = now + self._length(now)
            elif now > self._until:
                if not self.brief:
                    self._gave_up = now
                return False
            time.sleep(random.uniform(0.0005, 0.0025))
            return not self.stranded
        finally:
            self.waiting = False

    def _length(self, now: float) -> float:
        if self.brief:
            return BRIEFLY
        return NEXT_TURN if now - self._gave_up < NEXT_TURN else LOCKED_SECONDS


def _is_new(path: str) -> bool:
    """Return whether the file does not exist yet; raise if it cannot be created there."""
    place = Path(path)
    try:
        if place.is_dir():
            raise MailboxConnectionError(f"{path} is a directory; name a file in it")
        if not place.parent.is_dir():
            raise MailboxConnectionError(
                f"the directory {place.parent} does not exist; create it first"
            )
        return not place.exists()
    except OSError as error:
        raise MailboxConnectionError(f"{path} cannot be reached: {error.strerror}") from error


def _prepare(connection: apsw.Connection, path: str, busy_handler: BusyHandler) -> None:
    connection.set_busy_handler(busy_handler)
    version = _version(connection, path)
    # Only new files take this. Each commit writes whole pages to the journal, two or three for a
    # message, so small pages mean less to write and to sync.
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    _use_wal(connection, path)
    if version < len(SCRIPTS):
        _migrate(connection, path)
    if connection.readonly("main"):
        raise MailboxConnectionError(f"{path} cannot be written (is it read-only?)")
    # Without this, SQLite prepares a statement again each time a parameter of it is bound.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    # RETURNING keeps its rows in a temporary table, which would be a file.
    connection.execute("PRAGMA temp_store = MEMORY")


def configure_journal(connection: apsw.Connection, full: bool) -> None:
    """Configure the journal for commits with an fsync (``full``) or without."""
    # Overwriting a journal syncs faster than growing it, so with an fsync per commit a short one is
    # better; without, a long one makes checkpoints rare.
    connection.execute(f"PRAGMA wal_autocheckpoint = {1000 if full else 4000}")
    if full and sys.platform == "darwin":
        connection.execute("PRAGMA fullfsync = ON")


def shorten_journal(connection: apsw.Connection, path: str, busy_handler: BusyHandler) -> bool:
    """Empty the journal if it is long; False if that was not possible.

    By itself SQLite restarts it only if no connection reads or writes at the end of a checkpoint,
    which may never happen under load.
    """
    try:
        if Path(f"{path}-wal").stat().st_size <= JOURNAL_BYTES:
            return True
        busy_handler.brief = True
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return True
    except (OSError, apsw.Error):
        # Another connection is busy, or the disk is full; then the next step raises.
        return False
    finally:
        busy_handler.brief = False


def _version(connection: apsw.Connection, path: str) -> int:
    """Return the file's version, 0 for a new one; raise if it is not a file of ours."""
    with connection:  # one transaction: another process may be creating the file right now
        tables = connection.execute(QUERIES["count_tables"]).get
        application = connection.pragma("application_id")
        version = connection.pragma("user_version")
    if application != APPLICATION_ID:
        if application or version or tables:
            raise MailboxConnectionError(
                f"{path} is a database of another program; nothing was changed, choose another file"
            )
        return 0
    if version > len(SCRIPTS):
        raise MailboxConnectionError(
            f"{path} was written by a newer version (schema {version}, this one supports up to "
            f"{len(SCRIPTS)}); upgrade weakincentives here"
        )
    assert isinstance(version, int)
    return version


def _use_wal(connection: apsw.Connection, path: str) -> None:
    until = time.monotonic() + LOCKED_SECONDS
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            # SQLite does not call the busy handler when two processes create the same file.
            if time.monotonic() > until:
                raise
            time.sleep(random.uniform(0.0005, 0.0025))
            continue
        if mode != "wal":
            raise MailboxConnectionError(
                f"{path} cannot be shared between processes here (journal mode {mode}); "
                "put it on a local disk that can be written"
            )
        return


def _migrate(connection: apsw.Connection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for number in range(_version(connection, path), len(SCRIPTS)):
            connection.execute(read_script(SCRIPTS[number]))
            connection.execute(f"PRAGMA user_version = {number + 1}")
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
