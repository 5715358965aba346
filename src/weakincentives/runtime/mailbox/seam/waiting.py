"""Waiting without polling: a bell that a sender rings and a blocked consumer hears."""

import _thread
import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

from .forks import usable_lock
from .step_threads import hop
from .store import Leased, Leases, Store

__all__ = [
    "LATEST_LEASES",
    "RETRIES",
    "Bell",
    "BellListener",
    "Ear",
    "Retries",
    "StopSignal",
    "call_soon",
    "next_pause",
    "note_latest_leases",
]

# A due time that lies a rounding error ahead must not become a spin.
SHORTEST_PAUSE = 0.001


def next_pause(remaining: float, look_interval: float, next_due: float | None) -> float:
    """Return how long a blocked consumer may wait before it must look again."""
    pause = min(remaining, look_interval)
    if next_due is not None:
        pause = min(pause, max(next_due, SHORTEST_PAUSE))
    return max(pause, 0.0)


class Bell:
    """Wakes waiters in this process, one for each ring, the longest waiting first."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may ring while its own thread holds the lock.
        self._lock: Any = threading.RLock()
        self._rings = 0
        self._waiting: dict[Ear, Callable[[], object]] = {}

    def ring(self, times: int = 1) -> None:
        """Wake up to ``times`` waiters; one that is about to wait notices the ring too."""
        self._rings += 1
        if not self._waiting:
            return
        with self._lock:
            for ear in list(self._waiting)[:times]:
                self._waiting.pop(ear, _nothing)()

    def ring_all(self) -> None:
        """Wake every waiter."""
        self._rings += 1
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        for wake in waiting.values():
            wake()

    def begin_anew(self) -> None:
        """Forget the waiters in a forked child: they are threads of the parent."""
        self._lock = usable_lock(self._lock)
        self._waiting = {}


def _nothing() -> None:
    """Stand for a waiter that has left."""


class Ear:
    """A waiter at a bell, in a thread or an event loop; it misses no ring between two waits."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._heard = bell._rings - 1  # so that the first wait looks at once
        self._interrupted = False

    def wait(self, timeout: float) -> None:
        """Block until the bell rings, ``timeout`` passes, or `interrupt` is called."""
        # A lock, not an `Event`: the ring may come from a signal handler that interrupts this wait.
        asleep = _thread.allocate_lock()
        asleep.acquire()
        if self._enter(asleep.release):
            try:
                asleep.acquire(timeout=timeout)
            finally:
                self._leave()

    async def wait_async(self, timeout: float) -> None:
        """Do the same without blocking the event loop."""
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        if self._enter(partial(call_soon, loop, woken.set)):
            try:
                async with asyncio.timeout(timeout):
                    await woken.wait()
            except TimeoutError:
                pass
            finally:
                self._leave()

    async def hear(self, timeout: float, *, in_loop: bool) -> None:
        """Wait in this thread, or in an event loop."""
        if in_loop:
            await self.wait_async(timeout)
        else:
            self.wait(timeout)

    def interrupt(self) -> None:
        """End this wait and all later ones."""
        self._interrupted = True
        bell = self._bell
        with bell._lock:
            wake = bell._waiting.pop(self, None)
        if wake is not None:
            wake()

    def pass_on(self) -> None:
        """Pass a ring on to the next waiter, because this one heard it and did not act."""
        self._bell.ring()

    def _enter(self, wake: Callable[[], object]) -> bool:
        bell = self._bell
        with bell._lock:
            if self._interrupted or self._heard != bell._rings:
                self._heard = bell._rings
                return False
            bell._waiting[self] = wake
            # A ring takes the lock only if there is a waiter, so check again now that there is one.
            if self._heard != bell._rings:
                bell._waiting.pop(self, None)
                self._heard = bell._rings
                return False
            return True

    def _leave(self) -> None:
        with self._bell._lock:
            self._bell._waiting.pop(self, None)
            self._heard = self._bell._rings


def call_soon(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    """Have an event loop call this, from any thread; a loop that is closed does not."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        # A loop that was closed during a wait has no waiter left to wake.
        if not loop.is_closed():
            raise


class BellListener:
    """The `Listener` of a store that rings a bell in this process."""

    def __init__(self, store: Store, bell: Bell, *, in_loop: bool) -> None:
        self._store = store
        self._in_loop = in_loop
        self._hops = in_loop and store.steps == "blocking"
        self._ear = Ear(bell)
        self._interrupted = False

    async def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the bell, then lease."""
        await self._ear.hear(wait, in_loop=self._in_loop)
        if self._interrupted:
            return Leases(())
        at = self._store.clock.monotonic()
        leases = await (
            hop(lambda: self._store.lease(count, seconds), self._store)
            if self._hops
            else self._store.lease(count, seconds)
        )
        return leases._replace(at=at)

    def interrupt(self) -> None:
        """End the wait in progress, and any later one."""
        self._interrupted = True
        self._ear.interrupt()

    def close(self) -> None:
        """Wake the next waiter if this one was interrupted: a message may have woken it."""
        if self._interrupted:
            self._ear.pass_on()


class Retries(NamedTuple):
    """Callbacks that a backend calls while it retries a failed call."""

    failed: Callable[[Exception, float], bool] = lambda error, seconds: False
    """Called after each failure, with the seconds since the first; returns whether to give up."""
    succeeded: Callable[[], object] = lambda: None
    """Called when a call succeeds after failures."""


NO_CALLBACKS = Retries()
RETRIES: ContextVar[Retries] = ContextVar("retries", default=NO_CALLBACKS)


class LatestLeases(threading.local):
    """What the thread of a loop has just leased, recorded before an interrupt can lose it.

    A signal handler can raise as soon as a step is done, and the step's result is lost. So a store
    records the handles here while the step can still be undone.
    """

    store: object = None
    """The store from which the loop in this thread receives."""
    handles: Sequence[str] = ()
    """The handles of the latest leases; those that were not committed are refused later."""


LATEST_LEASES = LatestLeases()


def note_latest_leases(store: object, messages: Sequence[Leased]) -> None:
    """Record what was leased, if this is the thread of a loop and the loop's store."""
    if LATEST_LEASES.store is store:
        LATEST_LEASES.handles = [message.handle for message in messages]


class Interruptible(Protocol):
    """Something that waits, and whose wait can be ended."""

    def interrupt(self) -> None:
        """End the wait in progress, and any later one, at once; safe from any thread."""
        ...


class AsyncPause:
    """One pause in an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()

    def interrupt(self) -> None:
        """End the pause; safe from any thread."""
        call_soon(self._loop, self._over.set)

    async def wait(self, seconds: float) -> None:
        """Pause for this many seconds, or until `interrupt`."""
        try:
            async with asyncio.timeout(seconds):
                await self._over.wait()
        except TimeoutError:
            pass


class StopSignal:
    """Ends the receives that it was passed to, now and later, and no others."""

    latest_deadline: ClassVar[float] = 0.0
    """The latest time that any signal has allowed for work in hand; the process ends by then."""

    def __init__(self) -> None:
        self._is_set = False
        self._deadline: float | None = None
        # One lock for each pause, not an `Event`: an interrupt in its wait() or set() would leave
        # its inner lock taken.
        self._pausing: dict[_thread.LockType, None] = {}
        # Reentrant, because a signal handler may set it while its own thread adds a listener.
        self._lock = threading.RLock()
        self._listeners: set[Interruptible] = set()

    def is_set(self) -> bool:
        """Whether it is time to stop."""
        return self._is_set

    def say(self) -> None:
        """Set the signal without waking anyone; it takes no lock, so signal handlers may."""
        self._is_set = True

    def wait(self, timeout: float) -> bool:
        """Wait until the signal is set or ``timeout`` has passed; return whether it is set."""
        asleep = _thread.allocate_lock()
        asleep.acquire()
        self._pausing[asleep] = None
        try:
            if not self._is_set:  # otherwise `set` may have run before this pause was added
                asleep.acquire(timeout=timeout)
        finally:
            self._pausing.pop(asleep, None)
        return self._is_set

    def is_over(self) -> bool:
        """Whether work in hand must end too: at once, or after the time that `set` allows."""
        deadline = self._deadline
        return self._is_set and (deadline is None or time.monotonic() >= deadline)

    def is_late(self) -> bool:
        """Whether `set` allowed a time for work in hand, and that time has passed."""
        return self._deadline is not None and time.monotonic() >= self._deadline

    def pause(self, seconds: float) -> None:
        """Pause, but no longer than until work in hand must end."""
        if self.wait(seconds) and self._deadline is not None:
            time.sleep(max(0.0, min(seconds, self._deadline - time.monotonic())))

    async def wait_async(self, timeout: float) -> bool:
        """Do what `wait` does, in an event loop."""
        pause = AsyncPause()
        self.add(pause)
        try:
            await pause.wait(timeout)
        finally:
            self.discard(pause)
        return self._is_set

    async def pause_async(self, seconds: float) -> None:
        """Do what `pause` does, in an event loop."""
        if await self.wait_async(seconds) and self._deadline is not None:
            await asyncio.sleep(max(0.0, min(seconds, self._deadline - time.monotonic())))

    def set(self, within: float | None = None) -> None:
        """Stop now and for good; safe from any thread. Work in hand has ``within`` more seconds."""
        if within is not None and self._deadline is None:
            self._deadline = time.monotonic() + within
            StopSignal.latest_deadline = max(StopSignal.latest_deadline, self._deadline)
        self._is_set = True
        for asleep in list(self._pausing):
            if self._pausing.pop(asleep, self) is None:
                asleep.release()
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener.interrupt()

    def add(self, listener: Interruptible) -> None:
        """Interrupt this listener when the signal is set, or now if it is."""
        with self._lock:
            self._listeners.add(listener)
        if self._is_set:
            listener.interrupt()

    def discard(self, listener: Interruptible) -> None:
        """Forget a listener."""
        with self._lock:
            self._listeners.discard(listener)
