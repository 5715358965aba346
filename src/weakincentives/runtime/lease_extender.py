"""Leases that renew themselves while a message is worked on."""

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError
from weakincentives.runtime.mailbox.limits import check_positive
from weakincentives.runtime.mailbox.message import Message

from .lease_scheduler import SCHEDULER, UNHURRIED, LeaseScheduler, length_of_beat, next_beat

__all__ = [
    "Lease",
    "LeaseCounters",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseLostError",
    "current_lease",
]

# The name under which the specification shows these lines.
logger = logging.getLogger("weakincentives.runtime.main_loop")

TWELVE_HOURS = 43_200.0
SYSTEM_CLOCK = SystemClock()


class LeaseLostError(ReceiptHandleExpiredError):
    """The lease on this message is over: stop, somebody else may be working on it now."""


@dataclass(frozen=True, slots=True)
class LeaseExtenderConfig:
    """How the lease on a message is kept while it is worked on; times in seconds."""

    interval: float = 60.0
    """The longest time between two extensions; at least three fit into the lease that is held."""
    extension: float = 300
    """How long each extension makes the lease, from then on. In a loop, the default stands for
    the loop's own ``visibility_timeout``."""
    enabled: bool = True
    max_lease_seconds: float | None = TWELVE_HOURS
    """After so long a message is not kept any more, so that a handler that hangs lets go of it;
    None keeps it for as long as the process lives."""

    def __post_init__(self) -> None:
        check_positive("interval", self.interval)
        check_positive("extension", self.extension)
        if self.max_lease_seconds is not None:
            check_positive("max_lease_seconds", self.max_lease_seconds)


DEFAULT_EXTENSION = LeaseExtenderConfig().extension


@dataclass(slots=True)
class LeaseCounters:
    """What a `LeaseExtender` has done so far."""

    held: int = 0
    extended: int = 0
    failed: int = 0
    lost: int = 0
    given_up: int = 0
    """Leases that reached ``max_lease_seconds``."""


class Extendable(Protocol):
    """All that a message needs to have its lease kept."""

    @property
    def id(self) -> str:
        """The message's id."""
        ...

    def extend_visibility(self, timeout: Any) -> object:
        """Let the lease end ``timeout`` seconds from now."""
        ...


class Lease:
    """The lease on one message: until when it holds, and whether it was lost."""

    due = math.inf
    """When it is to be extended, as ``time.monotonic`` tells; not before the scheduler plans it."""
    _deadline = math.inf
    _lost = False

    def __init__(
        self, extender: "LeaseExtender | None", message: Any, config: LeaseExtenderConfig
    ) -> None:
        self.message = message
        self.config = config
        self.batchable = type(message) is Message
        """Whether the message is a mailbox's own, so that many can be extended in one step."""
        self._extender = extender
        self._clock: Clock = message.mailbox.store.clock if self.batchable else SYSTEM_CLOCK
        self._since = self._clock.monotonic()

    @property
    def deadline(self) -> float:
        """When the lease ends, as a reading of the mailbox's monotonic clock."""
        deadline: float = self.message.lease_deadline if self.batchable else self._deadline
        return deadline

    @property
    def lost(self) -> bool:
        """Whether the lease is over: its time has passed, or an extension was refused."""
        deadline = self.message.lease_deadline if self.batchable else self._deadline
        return self._lost or self._clock.monotonic() >= deadline

    def remaining(self) -> float:
        """Return the seconds until the deadline."""
        deadline = self.message.lease_deadline if self.batchable else self._deadline
        return deadline - self._clock.monotonic()

    def raise_if_lost(self) -> None:
        """Raise `LeaseLostError` if the lease is over: the work is then of no use to anybody."""
        if self.lost:
            raise LeaseLostError(
                f"the lease on message {getattr(self.message, 'id', '-')} is over, "
                f"somebody else may be working on it now"
            )

    def adjust(self, config: LeaseExtenderConfig) -> None:
        """Keep this lease by another config from now on."""
        self.config = config
        if self._extender is not None:
            self._extender.schedule(self)

    def abandon(self) -> None:
        """Count the lease as lost from now on."""
        self._lost = True

    def plan(self) -> None:
        """Find out when it is to be extended for the first time: as from when it was held."""
        held = self._clock.monotonic() - self._since
        self.due = next_beat(time.monotonic() - held, self.config, self.remaining() + held)

    def plan_next(self) -> None:
        """Find out when it is to be extended next, from now on."""
        self.due = next_beat(time.monotonic(), self.config, self.remaining())

    def next_extension(self) -> float | None:
        """Return by how much to extend now: 0 if there is no need, None if never again."""
        config, extension = self.config, self.config.extension
        if config.max_lease_seconds is not None:
            extension = min(
                extension, self._since + config.max_lease_seconds - self._clock.monotonic()
            )
            if extension <= 0:
                return None
        remaining = self.remaining()
        if math.isfinite(remaining) and remaining >= extension:
            # Never shorter than it is; at the end of what is allowed there is nothing to add.
            return 0.0 if extension == config.extension else None
        return extension

    def extended(self, seconds: float) -> None:
        """Record an extension that the mailbox granted."""
        self._deadline = self._clock.monotonic() + seconds
        self._count("extended")
        logger.debug("Extended visibility for message %s by %g seconds", self.message.id, seconds)

    def refused(self) -> None:
        """Record that the mailbox does not know the lease any more."""
        self._lost = True
        self._count("lost")
        logger.warning(
            "Lease extension failed for message %s: receipt handle expired", self.message.id
        )

    def failed(self, error: Exception) -> None:
        """Record an extension that could not be asked for; the next beat tries again."""
        self._count("failed")
        logger.warning("Lease extension failed for message %s", self.message.id, exc_info=error)

    def given_up(self) -> None:
        """Record that the lease was held for as long as it may be."""
        self._count("given_up")
        logger.warning(
            "Message %s was held for its maximum of %g seconds: its lease is not extended any more",
            self.message.id,
            self.config.max_lease_seconds,
        )

    def release(self) -> None:
        """Stop keeping the lease; never blocks."""
        if self._extender is not None:
            self._extender.counters.held -= 1
            self._extender.scheduler.drop(self)

    def _count(self, what: str) -> None:
        if self._extender is not None:
            counters = self._extender.counters
            setattr(counters, what, getattr(counters, what) + 1)


class _NoMessage:
    id = "-"


_NO_LEASE = Lease(None, _NoMessage(), LeaseExtenderConfig(enabled=False))
CURRENT: ContextVar[Lease] = ContextVar("lease", default=_NO_LEASE)
"""The lease on the message that is being handled."""


def current_lease() -> Lease:
    """Return the lease on the message that is being handled; outside a handler, one without end."""
    return CURRENT.get()


class LeaseExtender:
    """Extends the leases of messages while they are held.

    ::

        extender = LeaseExtender(config=LeaseExtenderConfig(interval=30))
        with extender.extend(msg):
            process(msg.body)
        msg.acknowledge()

    All extenders of a process share one thread, which ends when nothing is held.
    """

    def __init__(
        self,
        config: LeaseExtenderConfig | None = None,
        *,
        scheduler: LeaseScheduler | None = None,
    ) -> None:
        self.config = config if config is not None else LeaseExtenderConfig()
        self.counters = LeaseCounters()
        self.scheduler = scheduler if scheduler is not None else SCHEDULER

    @contextmanager
    def extend(self, msg: Extendable) -> Iterator[Lease]:
        """Keep the lease on ``msg`` inside the block; failures are logged and harm nothing."""
        lease = self.hold(msg)
        token = CURRENT.set(lease)
        try:
            yield lease
        finally:
            CURRENT.reset(token)
            lease.release()

    def hold(self, msg: Extendable, config: LeaseExtenderConfig | None = None) -> Lease:
        """Keep the lease on ``msg`` until it is released."""
        lease = Lease(self, msg, config if config is not None else self.config)
        self.counters.held += 1
        if lease.config.enabled:
            if length_of_beat(lease.config, lease.remaining()) < UNHURRIED:
                lease.plan()  # else in time: most leases are released before it matters
            self.scheduler.add(lease)
        return lease

    def schedule(self, lease: Lease) -> None:
        """Let the lease be extended as its config says."""
        if lease.config.enabled:
            lease.plan_next()
            self.scheduler.add(lease)
        else:
            self.scheduler.drop(lease)
