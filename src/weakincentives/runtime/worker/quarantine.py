"""Runs a suspicious job while the process holds no other message, so that a crash is its fault."""

import os
import threading
import time
import weakref
from contextvars import ContextVar
from typing import Protocol

from weakincentives.runtime.mailbox.seam.waiting import StopSignal

__all__ = ["QUARANTINE", "Quarantine"]

LONGEST = 300.0
"""Seconds that others wait, or are waited for: a job may itself wait for another one."""
LOOK = 0.02


class Hands(Protocol):
    """A thread of a worker, or the tasks of an event loop, which may hold messages."""

    in_event_loop: bool

    def is_busy(self) -> bool:
        """Whether it holds any, or may at any moment."""
        ...

    def beat(self) -> None:
        """Say that it goes on: to wait for others is not to hang."""
        ...

    def disown(self) -> None:
        """Leave all that it holds to the parent of this forked child."""
        ...


ALONE: ContextVar[Hands | None] = ContextVar("alone", default=None)
"""Whose job this runs in, if that runs alone: a loop inside it is no other."""


class Quarantine:
    """Lets one thread of all the loops of a process work while the others hold nothing."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.owner: Hands | None = None
        """Whoever wants to be alone. A thread of a loop looks at it before it goes on."""
        self._until = 0.0
        self._lock = threading.Lock()
        # Weak, because an interrupt may keep a thread from leaving; without a callback, in which
        # an interrupt would be lost.
        self._hands: dict[weakref.ref[Hands], int] = {}

    def begin_anew(self) -> None:
        """Forget everything, as a forked child must: what it finds in hand is its parent's."""
        for hands, _ in self._present():
            hands.disown()
        self._reset()

    def join(self, hands: Hands) -> None:
        """Count one more thread that may hold messages: the current one."""
        for key in [key for key in list(self._hands) if key() is None]:
            self._hands.pop(key, None)
        self._hands[weakref.ref(hands)] = threading.get_ident()

    def leave(self, hands: Hands) -> None:
        """Count it no longer."""
        self._hands.pop(weakref.ref(hands), None)
        self.end(hands)

    def begin(self, hands: Hands, stop: StopSignal) -> bool:
        """Wait until the others hold nothing; False if one of them has asked for the same."""
        if not self._claim(hands):
            return self.owner is ALONE.get()
        while self._must_wait(hands, stop):
            hands.beat()
            stop.wait(LOOK)
        self._until = time.monotonic() + LONGEST
        return True

    async def begin_async(self, hands: Hands, stop: StopSignal) -> bool:
        """Do what `begin` does, in an event loop."""
        if not self._claim(hands):
            return self.owner is ALONE.get()
        while self._must_wait(hands, stop):
            hands.beat()
            await stop.wait_async(LOOK)
        self._until = time.monotonic() + LONGEST
        return True

    def _claim(self, hands: Hands) -> bool:
        with self._lock:
            if self.owner is not None:
                return False
            self._until = time.monotonic() + LONGEST
            self.owner = hands
            ALONE.set(hands)
            return True

    def _must_wait(self, hands: Hands, stop: StopSignal) -> bool:
        return self._others_busy(hands) and not self._is_over() and not stop.is_set()

    def end(self, hands: Hands) -> None:
        """Let the others go on, if they had been waiting for this thread."""
        if self.owner is hands:
            self.owner = None
            ALONE.set(None)

    def is_anothers(self, hands: Hands) -> bool:
        """Whether this thread must hold nothing now."""
        owner = self.owner
        if owner is None or owner is hands or owner is ALONE.get():
            return False
        return not self._is_over()

    def is_overdue(self) -> bool:
        """Whether a thread has been alone for longer than others wait."""
        return self.owner is not None and self._is_over()

    def wait(self, hands: Hands, stop: StopSignal) -> None:
        """Wait while another thread is alone or is about to be."""
        while self.is_anothers(hands) and not stop.is_set():
            hands.beat()
            stop.wait(LOOK)

    async def wait_async(self, hands: Hands, stop: StopSignal) -> None:
        """Do what `wait` does, in an event loop."""
        while self.is_anothers(hands) and not stop.is_set():
            hands.beat()
            await stop.wait_async(LOOK)

    def _present(self) -> list[tuple[Hands, int]]:
        known = [(key(), thread) for key, thread in list(self._hands.items())]
        return [(hands, thread) for hands, thread in known if hands is not None]

    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    def _others_busy(self, me: Hands) -> bool:
        return any(
            other.is_busy()
            for other, thread in self._present()
            if other is not me and not _is_below(me, other, thread)
        )


def _is_below(me: Hands, other: Hands, thread: int) -> bool:
    """Whether the other is further down this very stack, so that it cannot be waited for."""
    return thread == threading.get_ident() and not (me.in_event_loop and other.in_event_loop)


# One for the process, because it dies as a whole.
QUARANTINE = Quarantine()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=QUARANTINE.begin_anew)
