"""The clock that is passed to everything that reads the time, so that tests can set it."""

import time
from functools import partial
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Reads the time in seconds: monotonic, and since the epoch."""

    def monotonic(self) -> float:
        """Return a time that never jumps; only the difference of two readings means anything."""
        ...

    def time(self) -> float:
        """Return the wall-clock time in seconds since the epoch."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    # Leases run out while a laptop sleeps, and only the boot clock counts that time.
    monotonic = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic
    )
    time = staticmethod(time.time)
