"""Waiting for a condition rather than for a length of time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    condition: Callable[[], T],
    timeout: float,
    what: str,
    *,
    ignoring: tuple[type[Exception], ...] = (),
    interval: float = 0.01,
) -> T:
    """Return the first truthy value of ``condition``; raise TimeoutError after ``timeout`` seconds.

    An exception listed in ``ignoring`` counts as "not yet", and is the cause of the TimeoutError
    if it was how the last attempt ended.
    """
    deadline = time.monotonic() + timeout
    while True:
        cause: Exception | None = None
        try:
            if value := condition():
                return value
        except ignoring as error:
            cause = error
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {timeout} s: {what}") from cause
        time.sleep(interval)
