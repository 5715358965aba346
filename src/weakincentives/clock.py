"""Where time comes from: injected, so that tests move it by hand."""

import time
from functools import partial
from typing import Protocol

__all__ = ["Clock", "SystemClock"]


class Clock(Protocol):
    """Two readings of time, both in seconds."""

    def monotonic(self) -> float:
        """Return a reading that never jumps; only differences mean anything."""
        ...

    def time(self) -> float:
        """Return the wall clock, in seconds since the epoch."""
        ...


class SystemClock:
    """The machine's own clocks."""

    # A laptop that slept has let its leases run out: only the boot clock counts sleep.
    monotonic = staticmethod(
        partial(time.clock_gettime, time.CLOCK_BOOTTIME)
        if hasattr(time, "CLOCK_BOOTTIME")
        else time.monotonic
    )
    time = staticmethod(time.time)
