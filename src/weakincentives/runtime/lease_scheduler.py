"""One thread for all the leases of a process, batched per mailbox."""

import logging
import math
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError

if TYPE_CHECKING:
    from .lease_extender import Lease, LeaseExtenderConfig

logger = logging.getLogger(__name__)

__all__ = [
    "SCHEDULER",
    "UNHURRIED",
    "LeaseScheduler",
    "aligned",
    "beat",
    "length_of_beat",
    "next_beat",
]

BEATS = 4  # the fourth would come as the lease ends, so three fit
SHORTEST_BEAT = 0.02
LINGER = 5.0
UNHURRIED = 2 * LINGER
"""A lease whose first beat comes later than this is planned when the thread next looks."""


def beat(interval: float, remaining: float) -> float:
    """Return the time until the next extension of a lease that lasts ``remaining`` seconds."""
    return max(min(interval, remaining / BEATS), SHORTEST_BEAT)


def aligned(due: float, length: float) -> float:
    """Return a moment a little before ``due`` that other leases share, so that they go together."""
    return due - due % (length / 8)


def length_of_beat(config: "LeaseExtenderConfig", remaining: float) -> float:
    """Return the time until the next extension; a lease of unknown length is one extension long."""
    return beat(config.interval, config.extension if remaining == math.inf else remaining)


def next_beat(now: float, config: "LeaseExtenderConfig", remaining: float) -> float:
    """Return when a lease that lasts ``remaining`` seconds must be extended next."""
    length = length_of_beat(config, remaining)
    return max(aligned(now + length, length), now + SHORTEST_BEAT)


class LeaseScheduler:
    """Extends every lease that was added when it is due; its thread lives while any is held."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        # A dict, because adding and dropping is then one step that needs no lock.
        self._leases: dict[Lease, None] = {}
        self._lock = threading.Lock()
        self._roused = threading.Event()
        self._thread: threading.Thread | None = None
        self._wakes_at = math.inf

    @property
    def held(self) -> int:
        """How many leases are kept."""
        return len(self._leases)

    @property
    def thread(self) -> threading.Thread | None:
        """The thread, while there is one."""
        return self._thread

    def add(self, lease: "Lease") -> None:
        """Keep a lease from now on."""
        self._leases[lease] = None
        if self._thread is None or lease.due < self._wakes_at:
            self._rouse()

    def drop(self, lease: "Lease") -> None:
        """Keep a lease no longer."""
        self._leases.pop(lease, None)

    def _rouse(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="lease-extender", daemon=True
                )
                self._thread.start()
            else:
                self._roused.set()

    def _run(self) -> None:
        while True:
            now = time.monotonic()
            try:
                self.extend_due(now)
            except Exception:
                # Leases of others depend on this thread: it must outlive what one of them does.
                logger.exception("the lease extender failed; it goes on")
                time.sleep(1.0)
            with self._lock:
                if not self._leases:
                    self._thread = None
                    return
                self._roused.clear()
                # Whoever adds a lease from here on rouses, until it is known when to wake.
                self._wakes_at = math.inf
                self._wakes_at = min(self._next_due(), now + LINGER)
            # Woken early for nothing at most every few seconds, so that it ends soon after the
            # last lease without being told.
            self._roused.wait(max(self._wakes_at - time.monotonic(), 0.0))

    def _next_due(self) -> float:
        return min((lease.due for lease in list(self._leases)), default=math.inf)

    def extend_due(self, now: float) -> None:
        """Extend every lease that is due."""
        batches: dict[tuple[Any, float], list[Lease]] = defaultdict(list)
        held = list(self._leases)
        for lease in held:
            if lease.due == math.inf:
                lease.plan()
        for lease in [lease for lease in held if lease.due <= now]:
            seconds = None if lease.lost else lease.next_extension()
            if seconds is None:
                self.drop(lease)
                if not lease.lost:
                    lease.given_up()
            elif seconds == 0:
                lease.plan_next()
            elif lease.batchable:
                batches[lease.message.mailbox, seconds].append(lease)
            else:
                self._extend_one(lease, seconds)
        for (mailbox, seconds), leases in batches.items():
            limit = mailbox.limits.max_batch
            for start in range(0, len(leases), limit):
                self._extend_batch(mailbox, leases[start : start + limit], seconds)

    def _extend_batch(self, mailbox: Any, leases: list["Lease"], seconds: float) -> None:
        seconds = mailbox.limits.rounded(seconds)
        try:
            answers: Iterable[bool] = mailbox.extend_batch(
                [lease.message for lease in leases], seconds
            )
        except Exception as error:  # noqa: BLE001 - whatever it was, the next beat tries again
            for lease in leases:
                self._failed(lease, error)
            return
        for lease, granted in zip(leases, answers, strict=True):
            self._answered(lease, granted, seconds)

    def _extend_one(self, lease: "Lease", seconds: float) -> None:
        try:
            lease.message.extend_visibility(seconds)
        except ReceiptHandleExpiredError:
            self._answered(lease, False, seconds)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(lease, error)
        else:
            self._answered(lease, True, seconds)

    def _answered(self, lease: "Lease", granted: bool, seconds: float) -> None:
        if lease not in self._leases:
            return
        if getattr(lease.message, "is_finalized", False):
            self.drop(lease)  # settled meanwhile, which may be why it was refused
            return
        if granted:
            lease.extended(seconds)
            lease.plan_next()
        else:
            self.drop(lease)
            lease.refused()

    def _failed(self, lease: "Lease", error: Exception) -> None:
        if lease in self._leases:
            lease.failed(error)
            lease.plan_next()


# One for the process, whatever the number of loops: threads must not grow with leases.
SCHEDULER = LeaseScheduler()

if hasattr(os, "register_at_fork"):
    # The child holds none of its parent's leases, and has none of its threads.
    os.register_at_fork(after_in_child=SCHEDULER._reset)
