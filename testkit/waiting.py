"""Waiting for a condition rather than for a length of time."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LONGEST_INTERVAL = 0.03


def eventually(
    condition: Callable[[], T],
    within: float = 120.0,
    what: str = "what was waited for",
    *,
    ignoring: tuple[type[Exception], ...] = (),
    interval: float = 0.005,
) -> T:
    """Return the first truthy value of ``condition``; raise TimeoutError after ``within`` seconds.

    An exception listed in ``ignoring`` counts as "not yet", and is the cause of the TimeoutError
    if it was how the last attempt ended. The longer it takes, the less often it looks, unless
    ``interval`` is 0.
    """
    deadline = time.monotonic() + within
    while True:
        cause: Exception | None = None
        try:
            if value := condition():
                return value
        except ignoring as error:
            cause = error
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {within:g} s: {what}") from cause
        time.sleep(interval)
        interval = min(interval * 1.1, LONGEST_INTERVAL)
