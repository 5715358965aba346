"""Signal handlers that raise, kept out of code in which that does harm or is lost.

Coverage takes a lock for a moment. An exception that a handler raises there would leave it taken,
and a handler that runs measured code there would wait for it: the run would hang for ever.

What a handler raises in a destructor, or in the callback of a weak reference, Python only reports:
whoever waits for its effect waits for ever.
"""

import signal
import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType

__all__ = ["sparing_coverage", "strike_again_if_lost"]

SOON = 2e-4
"""Seconds after which a handler that came at the wrong moment is called again."""
DEPTH = 8
"""Coverage is at most so many frames below its entry."""

Handler = Callable[[int, FrameType | None], object]


def sparing_coverage(handler: Handler) -> Handler:
    """Return a handler that is called by SIGALRM soon if it came at the wrong moment."""

    @wraps(handler)
    def spared(number: int, frame: FrameType | None) -> object:
        if not _is_spared(frame):
            return handler(number, frame)
        _, interval = signal.getitimer(signal.ITIMER_REAL)
        signal.setitimer(signal.ITIMER_REAL, SOON, interval)
        return None

    return spared


def strike_again_if_lost() -> None:
    """Have the handler of SIGALRM called soon whenever an interrupt of this process is lost.

    It must be one of `sparing_coverage`, and so should be the handlers of other signals.
    """
    sys.unraisablehook = _strike_again


def _strike_again(lost: "sys.UnraisableHookArgs") -> None:
    if isinstance(lost.exc_value, KeyboardInterrupt | SystemExit):
        signal.setitimer(signal.ITIMER_REAL, SOON)
    else:
        sys.__unraisablehook__(lost)


def _is_spared(frame: FrameType | None) -> bool:
    depth = 0
    while frame is not None and depth < DEPTH:
        code = frame.f_code
        if "/coverage/" in code.co_filename or code is _strike_again.__code__:
            return True
        # On a busy machine a handler may come that interrupts one, and one that interrupts that.
        depth += code.co_filename != __file__
        frame = frame.f_back
    return False
