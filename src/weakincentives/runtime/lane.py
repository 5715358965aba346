"""What the threads of a loop have in hand, and what they share."""

import asyncio
import contextvars
import itertools
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from .heartbeat import Heartbeat
from .lease_extender import DEFAULT_EXTENSION, LeaseExtenderConfig
from .source import Job

__all__ = ["Lane", "Run"]

LAZY = (GeneratorType, AsyncGeneratorType)


class Run:
    """One call of `Worker.run`: what its threads share."""

    def __init__(
        self,
        max_iterations: int | None,
        batch: int,
        visibility: float,
        wait: float,
        leases: LeaseExtenderConfig,
    ) -> None:
        self.batch = batch
        self.visibility = visibility
        self.wait = wait
        untold = leases.extension == DEFAULT_EXTENSION and visibility > 0
        self.leases = replace(leases, extension=visibility) if untold else leases
        self.error: BaseException | None = None
        # A step of an iterator is one that threads cannot come between.
        self._receives = (
            itertools.count() if max_iterations is None else iter(range(max_iterations))
        )

    def next(self) -> bool:
        """Count one receive; False if there were enough."""
        return next(self._receives, None) is not None


class Lane:
    """What one thread of a loop has in hand."""

    def __init__(self, handler: Callable[[Any], Any], heartbeat: Heartbeat, wait: float) -> None:
        self._handler = handler
        self.working = heartbeat.working()
        self.looking = heartbeat.looking(wait)
        self.glancing = heartbeat.looking()
        self.waiting: list[Job] = []
        """Received and not finished; the first one may be at work."""
        self.finished: list[Job] = []
        """To be acknowledged with the next receive, after the last one's answer."""
        self.failures = 0
        self._runner: asyncio.Runner | None = None

    def held(self) -> list[Job]:
        """Return what is in hand, finished or not."""
        return [*self.waiting, *self.finished]

    def call(self, body: Any) -> Any:
        """Call the handler, plain or async."""
        result = self._handler(body)
        if result is None:
            return None
        if hasattr(result, "__await__"):
            return self._await(result)
        if type(result) in LAZY:
            raise TypeError("the handler returned a generator: nothing of it has run")
        return result

    def _await(self, result: Awaitable[Any]) -> Any:
        """Await an async handler's result, in this thread's own event loop."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        # In the context of the job, so that current_lease() is there.
        return self._runner.run(_awaited(result), context=contextvars.copy_context())

    def close(self) -> None:
        """Close the event loop, if there is one."""
        if self._runner is not None:
            self._runner.close()


async def _awaited(result: Awaitable[Any]) -> Any:
    return await result
