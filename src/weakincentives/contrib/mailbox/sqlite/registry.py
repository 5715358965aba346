"""Shares each open SQLite file among its users in this process, and makes forking safe."""

import os
import threading
import weakref
from pathlib import Path
from typing import Any

from weakincentives.clock import Clock
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.seam.forks import release_locks, take_locks

from .connection import identity_of
from .database import Database, check_durability
from .file import File, SignalMaker
from .inotify import best_signal

__all__ = ["open_database", "shared_database"]


class Registry:
    """Knows every open file and counts its users."""

    def __init__(self) -> None:
        # Never held while a file is opened: one that is slow must not delay others.
        self._lock = threading.RLock()
        self._files: weakref.WeakSet[File] = weakref.WeakSet()
        self._shared: weakref.WeakSet[File] = weakref.WeakSet()
        # One fork at a time, because each releases the files that it has locked.
        self._fork_lock = threading.RLock()
        self._forking: list[File] = []
        self._taken: list[Any] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork_in_parent,
                after_in_child=self._after_fork_in_child,
            )

    def shared(self, path: str | os.PathLike[str], durability: str = "full") -> Database:
        """Open a file; all users of a file, under any name, share one `File`."""
        check_durability(durability)
        place = _place(path)
        with self._lock:
            file = self._find(place) or self._add(File(place))
            self._shared.add(file)
            database = self._join(file, durability)
        return _opened(database)

    def open(
        self,
        path: str | os.PathLike[str],
        durability: str = "full",
        *,
        clock: Clock | None = None,
        boot_id: str | None = None,
        make_signal: SignalMaker = best_signal,
    ) -> Database:
        """Open a file separately, as another process would; for tests."""
        check_durability(durability)
        file = File(_place(path), clock=clock, boot_id=boot_id, make_signal=make_signal)
        with self._lock:
            database = self._join(self._add(file), durability)
        return _opened(database)

    def _find(self, place: str) -> File | None:
        try:
            identity = identity_of(place)
        except OSError:
            identity = None  # opening it raises the reason
        for file in self._shared:
            # A file that is being opened has no identity yet.
            same = file.path == place if file.identity is None else file.identity == identity
            if same and not file.gone:
                return file
        return None

    def _add(self, file: File) -> File:
        self._files.add(file)
        return file

    def _join(self, file: File, durability: str) -> Database:
        database = Database(file, durability, self._leave)
        file.users.add(database)
        return database

    def _leave(self, database: Database, file: File) -> None:
        with self._lock:
            file.users.discard(database)
            last = not file.users
            if last:
                self._shared.discard(file)
        if last:
            file.close()

    def _before_fork(self) -> None:
        # If a signal handler raises in here, Python still forks, so start again.
        raised: BaseException | None = None
        while True:
            taken: list[Any] = []
            try:
                self._take_locks(taken)
                self._taken = taken
                break
            except BaseException as error:  # noqa: BLE001 - raised below, when all is taken
                raised = error
                release_locks(taken)
        if raised is not None:
            raise raised

    def _take_locks(self, taken: list[Any]) -> None:
        take_locks(taken, self._fork_lock)
        with self._lock:
            self._forking = list(self._files)
        for file in self._forking:
            file.before_fork(taken)
        # Last, because a signal handler inside a step may need it to close a database.
        take_locks(taken, self._lock)

    def _after_fork_in_parent(self) -> None:
        for file in self._forking:
            file.after_fork_in_parent()
        self._forking = []
        taken, self._taken = self._taken, []
        release_locks(taken)

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        self._fork_lock = threading.RLock()
        for file in self._forking:
            file.after_fork_in_child()
        self._forking, self._taken = [], []


def _place(path: str | os.PathLike[str]) -> str:
    if Path(path).name == ":memory:":
        raise InvalidParameterError(
            "path must be a file; for mailboxes in memory use memory:// or InMemoryMailbox"
        )
    return os.path.realpath(path)


def _opened(database: Database) -> Database:
    try:
        database.file.open()
    except BaseException:
        database.close()
        raise
    return database


# One for the process, because SQLite's locks belong to the process.
_registry = Registry()
open_database = _registry.open
shared_database = _registry.shared
