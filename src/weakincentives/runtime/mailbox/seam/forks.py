"""Locks after a fork: threads of the parent may hold them, and do not exist in the child."""

import os
import threading
import weakref
from collections import deque
from operator import methodcaller
from typing import Any, Protocol

__all__ = ["begin_anew_in_children", "release_locks", "take_locks", "usable_lock"]

_acquire, _release = methodcaller("acquire"), methodcaller("release")


class ForkAware(Protocol):
    """An object that needs new locks in a forked child."""

    def _begin_anew(self) -> None:
        """Replace the locks that threads of the parent may hold."""
        ...


_known: weakref.WeakSet[ForkAware] = weakref.WeakSet()


def begin_anew_in_children(thing: ForkAware) -> None:
    """Call its ``_begin_anew`` in every child that is forked from now on."""
    _known.add(thing)


def usable_lock(lock: Any) -> Any:
    """Return this lock if the current thread holds it, else a new one.

    The thread holds it if a signal handler forked: the interrupted frame continues in the child.
    """
    return lock if lock._is_owned() else threading.RLock()


def take_locks(taken: list[Any], *locks: Any) -> None:
    """Acquire locks before a fork, and add each one that is acquired to ``taken``.

    This is one call of C code, so a signal handler can run only while it waits for a lock.
    """
    taken.extend(filter(_acquire, locks))


def release_locks(taken: list[Any]) -> None:
    """Release the locks, in one call too."""
    deque(map(_release, reversed(taken)), maxlen=0)


def _begin_anew() -> None:
    for thing in list(_known):
        thing._begin_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
