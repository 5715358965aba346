"""The threads that take the blocking steps of stores for event loops: a few for each backend.

An event loop's own executor has a handful of threads for everything. A server that hangs would
occupy them all, and with them every other mailbox of the loop, and whatever its user runs there.
"""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import TypeVar
from weakref import WeakKeyDictionary

from .driver import Make, run
from .optional_protocols import backend_of

__all__ = ["STEP_THREADS", "StepThreads", "call_in_thread", "hop"]

V = TypeVar("V")

MOST_THREADS = min(32, (os.cpu_count() or 1) + 4)
"""Threads for each backend, started as they are needed: as many as an event loop has by default.

A backend whose calls take long, over the internet, asks for more with `StepThreads.allow`.
"""


class StepExecutor(ThreadPoolExecutor):
    """An executor that keeps no step for later which it has refused.

    What the standard one cannot start a thread for stays in its queue, though `submit` raises: it
    may lease messages that nobody knows of.
    """

    def _adjust_thread_count(self) -> None:
        try:
            super()._adjust_thread_count()
        except RuntimeError:
            if not self._threads:
                self._work_queue.get_nowait()  # nothing else can be in it
                raise
            # Else a thread that is there takes it, sooner or later.


class StepThreads:
    """Executors by backend. Their threads end when the backend is gone, or is released."""

    def __init__(self) -> None:
        self._most: WeakKeyDictionary[object, int] = WeakKeyDictionary()
        self.reset()

    def allow(self, backend: object, threads: int) -> None:
        """Let a backend have this many threads, if that is more than the usual number."""
        with suppress(TypeError):  # a kind that cannot be referred to weakly
            self._most[backend] = threads

    def reset(self) -> None:
        """Begin without threads, as a forked child must."""
        # Weak, so that threads end with their backend: an executor that is collected lets its
        # threads finish what is queued, and ends them.
        self._of: WeakKeyDictionary[object, WeakKeyDictionary[object, StepExecutor]] = (
            WeakKeyDictionary()
        )

    def executor(self, backend: object, other: object) -> StepExecutor | None:
        """Return the executor for steps on two backends, which may be the same one.

        It is None, the event loop's own, for a backend of a kind that cannot be referred to weakly.
        """
        try:
            beside = self._of.get(backend)
            # setdefault is atomic, so that two event loops get the same one.
            if beside is None:
                beside = self._of.setdefault(backend, WeakKeyDictionary())
            found = beside.get(other)
            if found is None:
                most = max(MOST_THREADS, *(self._most.get(one, 0) for one in (backend, other)))
                found = beside.setdefault(other, StepExecutor(most, "store-steps"))
        except TypeError:
            return None
        return found

    def release(self, backend: object) -> None:
        """End the threads of a backend when they have finished; a later step starts new ones."""
        self._of.pop(backend, None)


# One for the whole process: event loops that use the same backend share its threads.
STEP_THREADS = StepThreads()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=STEP_THREADS.reset)


async def hop(make: Make[V], *places: object) -> V:
    """Run a coroutine whose steps block, in a thread of the backend of these stores or tables.

    Without any it runs in the event loop's own executor.
    """
    if not places:
        return await asyncio.to_thread(run, make)
    return await call_in_thread(backend_of(places[0]), backend_of(places[-1]), run, make)


async def call_in_thread(
    backend: object, other: object, call: Callable[..., V], *arguments: object
) -> V:
    """Call a function that uses two backends, in a thread of theirs and in this context."""
    loop = asyncio.get_running_loop()
    executor = STEP_THREADS.executor(backend, other)
    return await loop.run_in_executor(executor, copy_context().run, call, *arguments)
