"""The databases of this process: one for each file, and what must happen to them in a fork."""

import os
import threading
import weakref

from weakincentives.clock import Clock

from .database import Database, SignalMaker
from .signals import best_signal

__all__ = ["open_database", "shared_database"]


class Registry:
    """Knows every open database, without keeping it open."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._all: weakref.WeakSet[Database] = weakref.WeakSet()
        self._shared: weakref.WeakValueDictionary[tuple[str, str], Database] = (
            weakref.WeakValueDictionary()
        )
        self._forking: list[Database] = []
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(
                before=self._before_fork,
                after_in_parent=self._after_fork_in_parent,
                after_in_child=self._after_fork_in_child,
            )

    def open(
        self,
        path: str | os.PathLike[str],
        durability: str = "full",
        *,
        clock: Clock | None = None,
        boot_id: str | None = None,
        make_signal: SignalMaker = best_signal,
    ) -> Database:
        """Open a database that its owner closes."""
        with self._lock:
            database = Database(
                path, durability, clock=clock, boot_id=boot_id, make_signal=make_signal
            )
            self._all.add(database)
            return database

    def shared(self, path: str | os.PathLike[str], durability: str) -> Database:
        """Return the database that all mailboxes of this path have in common."""
        place = os.path.realpath(path)
        with self._lock:
            database = self._shared.get((place, durability))
            if database is None or database.gone:
                database = self._shared[place, durability] = self.open(place, durability)
            return database

    def _before_fork(self) -> None:
        self._lock.acquire()
        self._forking = list(self._all)
        for database in self._forking:
            database.before_fork()

    def _after_fork_in_parent(self) -> None:
        for database in self._forking:
            database.after_fork_in_parent()
        self._forking = []
        self._lock.release()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()
        for database in self._forking:
            database.after_fork_in_child()
        self._forking = []


# SQLite's locks belong to the process, so the knowledge of what is open does too.
_registry = Registry()
open_database = _registry.open
shared_database = _registry.shared
