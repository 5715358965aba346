"""Asks the backend for what a page shows, without letting one that hangs hold up the rest."""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from weakincentives.errors import WinkError

__all__ = ["BackendCalls", "BackendTooSlowError", "TooManyCallsError"]

V = TypeVar("V")

THREADS = 8
CALL_SECONDS = 10.0


class BackendTooSlowError(WinkError):
    """The backend has not answered in time."""


class TooManyCallsError(WinkError):
    """Too many questions to the backend are under way; try again in a moment."""


class BackendCalls:
    """Runs blocking calls in a few threads, and waits for each for a bounded time."""

    def __init__(self, seconds: float = CALL_SECONDS) -> None:
        self._seconds = seconds
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="dashboard-call")
        self._under_way = 0

    async def run(self, call: Callable[[], V]) -> V:
        """Run a call; a backend that does not answer raises `BackendTooSlowError`."""
        if self._under_way >= 4 * THREADS:
            raise TooManyCallsError()
        self._under_way += 1
        context = contextvars.copy_context()
        future = asyncio.get_running_loop().run_in_executor(
            self._threads, partial(context.run, call)
        )
        # Counted until it has ended: a call whose reader has gone still takes a thread.
        future.add_done_callback(self._ended)
        try:
            return await asyncio.wait_for(asyncio.shield(future), self._seconds)
        except TimeoutError:
            raise BackendTooSlowError(
                f"the backend has not answered within {self._seconds:g} seconds"
            ) from None

    def _ended(self, future: "asyncio.Future[V]") -> None:
        self._under_way -= 1
        if not future.cancelled():
            future.exception()  # so that an error nobody waits for any more is not reported

    def close(self) -> None:
        """Start no more calls, and wait for none."""
        self._threads.shutdown(wait=False, cancel_futures=True)
