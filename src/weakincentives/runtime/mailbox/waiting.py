"""Waiting without polling: a bell that a sender rings and a blocked consumer hears."""

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from .flow import in_executor
from .store import Leases, Listener, Store

__all__ = ["Bell", "BellListener", "Ear", "StopSignal", "next_pause"]

# A due time that lies a rounding error ahead must not become a spin.
SHORTEST_PAUSE = 0.001

V = TypeVar("V")


def next_pause(remaining: float, look_interval: float, next_due: float | None) -> float:
    """Return how long a blocked consumer may wait before it must look again."""
    pause = min(remaining, look_interval)
    if next_due is not None:
        pause = min(pause, max(next_due, SHORTEST_PAUSE))
    return max(pause, 0.0)


class Bell:
    """Wakes those who wait in this process, one for each ring, longest waiting first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rings = 0
        self._waiting: dict[Ear, Callable[[], object]] = {}

    def ring(self, times: int = 1) -> None:
        """Wake up to ``times`` waiters; one that is about to wait will not."""
        self._rings += 1
        if not self._waiting:
            return
        with self._lock:
            for ear in list(self._waiting)[:times]:
                self._waiting.pop(ear)()

    def ring_all(self) -> None:
        """Wake everybody."""
        self._rings += 1
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for wake in waiting.values():
            wake()


class Ear:
    """One waiter at a bell, sync or async; it misses no ring since it last listened."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._heard = bell._rings - 1  # so that the first wait looks at once
        self._interrupted = False

    def wait(self, timeout: float) -> None:
        """Block until the bell rings, ``timeout`` passes, or `interrupt` is called."""
        event = threading.Event()
        if self._enter(event.set):
            try:
                event.wait(timeout)
            finally:
                self._leave()

    async def wait_async(self, timeout: float) -> None:
        """Do the same in an event loop."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        if self._enter(partial(_call_soon, loop, woken.set)):
            try:
                async with asyncio.timeout(timeout):
                    await woken.wait()
            except TimeoutError:
                pass
            finally:
                self._leave()

    def interrupt(self) -> None:
        """End this wait and all later ones."""
        self._interrupted = True
        bell = self._bell
        with bell._lock:
            wake = bell._waiting.pop(self, None)
        if wake is not None:
            wake()

    def pass_on(self) -> None:
        """Hand a ring that was heard but not acted on to the next in line."""
        self._bell.ring()

    def _enter(self, wake: Callable[[], object]) -> bool:
        bell = self._bell
        with bell._lock:
            if self._interrupted or self._heard != bell._rings:
                self._heard = bell._rings
                return False
            bell._waiting[self] = wake
            # A ring takes the lock only if somebody waits, so look once more now that one does.
            if self._heard != bell._rings:
                del bell._waiting[self]
                self._heard = bell._rings
                return False
            return True

    def _leave(self) -> None:
        with self._bell._lock:
            self._bell._waiting.pop(self, None)
            self._heard = self._bell._rings


def _call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    # A loop that was closed with a wait still registered has nobody left to wake.
    if not loop.is_closed():
        loop.call_soon_threadsafe(call)


class BellListener:
    """The `Listener` of a store that rings a bell in this process."""

    def __init__(self, store: Store, bell: Bell) -> None:
        self._store = store
        self._ear = Ear(bell)
        self._interrupted = False

    def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the bell, then lease."""
        self._ear.wait(wait)
        return Leases(()) if self._interrupted else self._lease(count, seconds)

    async def lease_async(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the bell in the event loop, then lease."""
        await self._ear.wait_async(wait)
        if self._interrupted:
            return Leases(())
        if self._store.steps == "inline":
            return self._lease(count, seconds)
        return await in_executor(partial(self._lease, count, seconds))  # type: ignore[no-any-return]

    def _lease(self, count: int, seconds: float) -> Leases:
        at = self._store.clock.monotonic()
        return self._store.lease(count, seconds)._replace(at=at)

    def interrupt(self) -> None:
        """End the wait in progress, and any later one."""
        self._interrupted = True
        self._ear.interrupt()

    def close(self) -> None:
        """Let the next in line look, in case this listener was woken and did not."""
        if self._interrupted:
            self._ear.pass_on()


class StopSignal:
    """Ends the receives that were given it, in progress or to come; nobody else's."""

    def __init__(self) -> None:
        self._said = False
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()

    def is_set(self) -> bool:
        """Whether it is time to stop."""
        return self._said

    def say(self) -> None:
        """Let `is_set` be true, without waking anybody: takes no lock, so signal handlers may."""
        self._said = True

    def wait(self, timeout: float) -> bool:
        """Pause, but no longer than until the signal is given; return whether it was."""
        return self._event.wait(timeout)

    def set(self) -> None:
        """Stop now and for good; safe from any thread."""
        self._said = True
        self._event.set()
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.interrupt()

    def add(self, listener: Listener) -> None:
        """Interrupt this listener when the signal is given, or now if it was."""
        with self._lock:
            self._listeners.add(listener)
        if self._said:
            listener.interrupt()

    def discard(self, listener: Listener) -> None:
        """Forget a listener."""
        with self._lock:
            self._listeners.discard(listener)
