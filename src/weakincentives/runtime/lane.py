"""What the threads of a loop have in hand, and what they share."""

import asyncio
import contextvars
import math
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from .lease_extender import DEFAULT_EXTENSION, LeaseExtenderConfig
from .source import Job

__all__ = ["Lane", "Run"]

LAZY = (GeneratorType, AsyncGeneratorType)


class Run:
    """One call of `Worker.run`: what its threads share."""

    def __init__(
        self,
        max_iterations: int | None,
        visibility: float,
        wait: float,
        leases: LeaseExtenderConfig,
    ) -> None:
        self.visibility = visibility
        self.wait = wait
        # What makes no sense as a lease is refused where it is asked for.
        untold = leases.extension == DEFAULT_EXTENSION
        sensible = isinstance(visibility, int | float) and 0 < visibility < math.inf
        self.leases = replace(leases, extension=visibility) if untold and sensible else leases
        self.error: BaseException | None = None
        self._left = max_iterations
        self._lock = threading.Lock()

    def next(self) -> bool:
        """Count one receive; False if there were enough."""
        if self._left is None:
            return True
        with self._lock:
            self._left -= 1
            return self._left >= 0


class Lane:
    """What one thread of a loop has in hand."""

    def __init__(self, handler: Callable[[Any], Any]) -> None:
        self._handler = handler
        self.waiting: list[Job] = []
        """Received and not finished; the first one may be at work."""
        self.finished: list[Job] = []
        """To be acknowledged with the next receive, after the last one's answer."""
        self.failures = 0
        self._runner: asyncio.Runner | None = None

    def call(self, body: Any) -> Any:
        """Call the handler, plain or async."""
        result = self._handler(body)
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
