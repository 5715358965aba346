"""Runs a suspect job while its process holds no other message, so that a crash is its fault."""

import os
import threading
import time
import weakref
from contextvars import ContextVar
from typing import Protocol

from weakincentives.runtime.mailbox.seam.waiting import StopSignal

__all__ = ["QUARANTINE", "Quarantine"]

LONGEST = 300.0
"""The longest wait in seconds, because the suspect job may itself wait for another job."""
LOOK = 0.02


class MessageHolder(Protocol):
    """A thread of a worker, or the event loop of one, which may hold messages."""

    in_event_loop: bool

    def is_busy(self) -> bool:
        """Return whether it holds messages, or may get some at any moment."""
        ...

    def beat(self) -> None:
        """Give a heartbeat: waiting for others must not look like hanging."""
        ...

    def disown(self) -> None:
        """In a forked child: leave all its messages to the parent."""
        ...


ALONE: ContextVar[MessageHolder | None] = ContextVar("alone", default=None)
"""The owner whose job runs alone in this context; a loop inside that job need not wait for it."""


class Quarantine:
    """Lets one thread or event loop of the process work while all others hold nothing."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.owner: MessageHolder | None = None
        """The one that runs alone, or waits to. The others check this before each message."""
        self._until = 0.0
        self._lock = threading.Lock()
        # Weak, because an interrupt may keep a thread from leaving; without a callback, in which
        # an interrupt would be lost.
        self._holders: dict[weakref.ref[MessageHolder], int] = {}

    def begin_anew(self) -> None:
        """Forget everything, as a forked child must: what it finds in hand is its parent's."""
        for holder, _ in self._present():
            holder.disown()
        self._reset()

    def join(self, holder: MessageHolder) -> None:
        """Count one more thread that may hold messages: the current one."""
        for key in [key for key in list(self._holders) if key() is None]:
            self._holders.pop(key, None)
        self._holders[weakref.ref(holder)] = threading.get_ident()

    def leave(self, holder: MessageHolder) -> None:
        """Count it no longer."""
        self._holders.pop(weakref.ref(holder), None)
        self.end(holder)

    def begin(self, holder: MessageHolder, stop: StopSignal) -> bool:
        """Wait until the others hold nothing; False if another one has asked first."""
        if not self._claim(holder):
            return self.owner is ALONE.get()
        while self._must_wait(holder, stop):
            holder.beat()
            stop.wait(LOOK)
        self._until = time.monotonic() + LONGEST
        return True

    async def begin_async(self, holder: MessageHolder, stop: StopSignal) -> bool:
        """Do what `begin` does, in an event loop."""
        if not self._claim(holder):
            return self.owner is ALONE.get()
        while self._must_wait(holder, stop):
            holder.beat()
            await stop.wait_async(LOOK)
        self._until = time.monotonic() + LONGEST
        return True

    def _claim(self, holder: MessageHolder) -> bool:
        with self._lock:
            if self.owner is not None:
                return False
            self._until = time.monotonic() + LONGEST
            self.owner = holder
            ALONE.set(holder)
            return True

    def _must_wait(self, holder: MessageHolder, stop: StopSignal) -> bool:
        return self._others_busy(holder) and not self._is_over() and not stop.is_set()

    def end(self, holder: MessageHolder) -> None:
        """Let the others continue, if this one was running alone."""
        if self.owner is holder:
            self.owner = None
            ALONE.set(None)

    def is_anothers(self, holder: MessageHolder) -> bool:
        """Return whether another one runs alone, so that this one must hold nothing."""
        owner = self.owner
        if owner is None or owner is holder or owner is ALONE.get():
            return False
        return not self._is_over()

    def is_overdue(self) -> bool:
        """Return whether one has been alone for so long that the others no longer wait."""
        return self.owner is not None and self._is_over()

    def wait(self, holder: MessageHolder, stop: StopSignal) -> None:
        """Wait while another one runs alone or is about to."""
        while self.is_anothers(holder) and not stop.is_set():
            holder.beat()
            stop.wait(LOOK)

    async def wait_async(self, holder: MessageHolder, stop: StopSignal) -> None:
        """Do what `wait` does, in an event loop."""
        while self.is_anothers(holder) and not stop.is_set():
            holder.beat()
            await stop.wait_async(LOOK)

    def _present(self) -> list[tuple[MessageHolder, int]]:
        known = [(key(), thread) for key, thread in list(self._holders.items())]
        return [(holder, thread) for holder, thread in known if holder is not None]

    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    def _others_busy(self, me: MessageHolder) -> bool:
        return any(
            other.is_busy()
            for other, thread in self._present()
            if other is not me and not _is_below(me, other, thread)
        )


def _is_below(me: MessageHolder, other: MessageHolder, thread: int) -> bool:
    """Return whether the other one is a caller of this one, so that waiting would deadlock."""
    return thread == threading.get_ident() and not (me.in_event_loop and other.in_event_loop)


# One for the process, because a crash kills all its threads.
QUARANTINE = Quarantine()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=QUARANTINE.begin_anew)
