"""From a path to a connection: nothing that is not ours is touched, nothing newer is read."""

import os
import random
import stat
import sys
import time
from pathlib import Path
from urllib.parse import quote

import apsw

from weakincentives.runtime.mailbox.errors import MailboxConnectionError

from .queries import read_script

__all__ = ["open_connection", "wake_path"]

APPLICATION_ID = int.from_bytes(b"wink", "big")
# The nth script takes a file from version n - 1 to version n.
SCRIPTS = ("schema.sql",)
PATIENCE = 30.0
PAGE_SIZE = 2048


def wake_path(path: str) -> str:
    """Return the file that waiters watch."""
    return f"{path}-wake"


def open_connection(path: str, durability: str) -> apsw.Connection:
    """Open a file, made or brought up to date if need be; raises `apsw.Error` or our own."""
    name = f"file:{quote(path)}"
    if _is_new(path):
        make_wake_file(path)
        # SQLite gives a new file the mode of this one: no moment at which others could read it.
        name += f"?modeof={quote(wake_path(path))}"
    flags = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
    connection = apsw.Connection(name, flags=flags)
    try:
        _prepare(connection, path, durability)
    except BaseException:
        connection.close()
        raise
    return connection


def identity_of(path: str) -> tuple[int, int] | None:
    """Return what tells a file from another one of the same name; None if there is none."""
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
            os.pwrite(file, b"\n", 0)  # one byte, for a wake-up is somebody reading it
        finally:
            os.close(file)
    except OSError as error:
        raise MailboxConnectionError(f"{wake} cannot be made: {error.strerror}") from error


class Patience:
    """Waits for a lock in random small steps, so that no process starves; gives up after 30 s."""

    def __init__(self) -> None:
        self._until = 0.0

    def __call__(self, attempt: int) -> bool:
        if attempt == 0:
            self._until = time.monotonic() + PATIENCE
        elif time.monotonic() > self._until:
            return False
        time.sleep(random.uniform(0.0005, 0.0025))
        return True


def _is_new(path: str) -> bool:
    """Whether there is no such file yet; refuse a place where there can be none."""
    place = Path(path)
    try:
        if place.is_dir():
            raise MailboxConnectionError(f"{path} is a directory; name a file in it")
        if not place.parent.is_dir():
            raise MailboxConnectionError(
                f"the directory {place.parent} does not exist; make it first"
            )
        return not place.exists()
    except OSError as error:
        raise MailboxConnectionError(f"{path} cannot be reached: {error.strerror}") from error


def _prepare(connection: apsw.Connection, path: str, durability: str) -> None:
    connection.set_busy_handler(Patience())
    version = _version(connection, path)
    # For a new file. Each commit writes whole pages to the journal, two or three of them for a
    # message: small ones are less to write and to sync.
    connection.execute(f"PRAGMA page_size = {PAGE_SIZE}")
    _use_wal(connection, path)
    if version < len(SCRIPTS):
        _migrate(connection, path)
    if connection.readonly("main"):
        raise MailboxConnectionError(f"{path} cannot be written (is it read-only?)")
    # Without this, SQLite prepares a statement again each time a parameter of it is bound.
    connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
    synchronous = "FULL" if durability == "full" else "NORMAL"
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    if sys.platform == "darwin" and durability == "full":
        connection.execute("PRAGMA fullfsync = ON")
    # RETURNING keeps its rows in a temporary table, which would be a file.
    connection.execute("PRAGMA temp_store = MEMORY")
    # A journal that is used again is faster to sync than one that still grows, so with an fsync at
    # each commit it is better short; without, a long one makes checkpoints rare.
    checkpoint = 1000 if durability == "full" else 4000
    connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint}")
    connection.execute("PRAGMA journal_size_limit = 67108864")


def _version(connection: apsw.Connection, path: str) -> int:
    """Return the file's version, 0 for a new one; refuse what is not for us."""
    with connection:  # one look: another process may be making the file right now
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
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
            f"{path} was written by a newer version (schema {version}, this one knows up to "
            f"{len(SCRIPTS)}); upgrade weakincentives here"
        )
    assert isinstance(version, int)
    return version


def _use_wal(connection: apsw.Connection, path: str) -> None:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
        except apsw.BusyError:
            # SQLite does not ask the busy handler when two processes make the same file.
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
