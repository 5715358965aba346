"""The leases of this process and when they end: SQS Standard accepts expired handles."""

import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children, usable_lock

__all__ = ["LONGEST_LEASE", "HeldLease", "HeldLeases"]

LONGEST_LEASE = 12 * 3600
"""SQS ends a lease this many seconds after the receive, however often it was extended."""

UNSURE = 5.0
"""How many seconds earlier than we know SQS may have started a lease."""

SWEEP_EVERY = 60.0


class HeldLease(NamedTuple):
    """When a lease began and when it ends, by the monotonic clock."""

    since: float
    until: float

    def longest(self, now: float) -> int:
        """Return for how many whole seconds from now the lease may still last."""
        return int(self.since + LONGEST_LEASE - UNSURE - now)


class HeldLeases:
    """The handles of this process whose leases have not ended; any other handle is refused."""

    def __init__(self) -> None:
        # Reentrant, because a signal handler may settle a message while its own thread holds it.
        self._lock: Any = threading.RLock()
        self._leases: dict[str, HeldLease] = {}
        self._next_sweep = 0.0
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        """Go on in a forked child."""
        self._lock = usable_lock(self._lock)

    def hold(self, handles: Iterable[str], since: float, until: float) -> None:
        """Remember new leases, and forget some that ended unsettled."""
        with self._lock:
            if since >= self._next_sweep:
                self._sweep(since)
                self._next_sweep = since + SWEEP_EVERY
            self._leases.update(dict.fromkeys(handles, HeldLease(since, until)))

    def _sweep(self, now: float) -> None:
        self._leases = {h: held for h, held in self._leases.items() if held.until > now}

    def of(self, handles: Sequence[str], now: float) -> list[HeldLease | None]:
        """Return the leases that still run, in the order of the handles."""
        with self._lock:
            found = [self._leases.get(handle) for handle in handles]
        return [held if held is not None and now < held.until else None for held in found]

    def until(self, handle: str) -> float:
        """Return when a lease ends; one that is not held has ended."""
        with self._lock:
            held = self._leases.get(handle)
        return float("-inf") if held is None else held.until

    def prolong(self, handle: str, until: float) -> None:
        """Change when a lease ends."""
        with self._lock:
            held = self._leases.get(handle)
            if held is not None:
                self._leases[handle] = held._replace(until=until)

    def drop(self, handles: Iterable[str]) -> None:
        """Forget leases."""
        with self._lock:
            for handle in handles:
                self._leases.pop(handle, None)

    def clear(self) -> None:
        """Forget all leases."""
        with self._lock:
            self._leases.clear()
