"""Signal handlers of timers, kept out of the code that measures coverage.

Coverage takes a lock for a moment. An exception that a handler raises there would leave it taken,
and a handler that runs measured code there would wait for it: the run would hang for ever.
"""

import signal
from collections.abc import Callable
from functools import wraps
from types import FrameType

__all__ = ["sparing_coverage"]

SOON = 2e-5
"""Seconds after which a handler that came at the wrong moment is called again."""
DEPTH = 8
"""Coverage is at most so many frames below its entry."""

Handler = Callable[[int, FrameType | None], object]


def sparing_coverage(handler: Handler) -> Handler:
    """Return a handler of SIGALRM that is called again soon if coverage was interrupted."""

    @wraps(handler)
    def spared(number: int, frame: FrameType | None) -> object:
        if not _is_in_coverage(frame):
            return handler(number, frame)
        _, interval = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, SOON, interval)
        return None

    return spared


def _is_in_coverage(frame: FrameType | None) -> bool:
    for _ in range(DEPTH):
        if frame is None:
            return False
        if "/coverage/" in frame.f_code.co_filename:
            return True
        frame = frame.f_back
    return False
