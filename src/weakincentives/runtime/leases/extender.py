"""The lease of a message that is being handled, and the extender that renews it."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from weakincentives.clock import Clock, SystemClock
from weakincentives.logs import get_logger
from weakincentives.runtime.heartbeat import Heartbeat
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError
from weakincentives.runtime.mailbox.limits import check_positive
from weakincentives.runtime.mailbox.message import Message
from weakincentives.runtime.mailbox.seam.optional_protocols import backend_of

from .scheduler import PLAN_LATER_SECONDS, SCHEDULERS, LeaseScheduler, beat_length, next_beat

__all__ = [
    "Lease",
    "LeaseCounters",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseLostError",
    "current_lease",
]

logger = get_logger(__name__)

TWELVE_HOURS = 43_200.0
SYSTEM_CLOCK = SystemClock()


class LeaseLostError(ReceiptHandleExpiredError):
    """The lease on this message is over: stop, another worker may be handling it now."""


@dataclass(frozen=True, slots=True)
class LeaseExtenderConfig:
    """How leases are extended while messages are handled; all times are in seconds."""

    interval: float = 60.0
    """The longest time between two extensions; for short leases it is reduced, so that at least
    three extensions fit into one lease."""
    extension: float = 300
    """How long the lease lasts after each extension. In a loop, the default means the loop's own
    ``visibility_timeout``."""
    enabled: bool = True
    max_lease_seconds: float | None = TWELVE_HOURS
    """How long one message may be leased in total. After that its lease is not extended, so that
    a handler that hangs loses it; None means no limit."""

    def __post_init__(self) -> None:
        check_positive("interval", self.interval)
        check_positive("extension", self.extension)
        if self.max_lease_seconds is not None:
            check_positive("max_lease_seconds", self.max_lease_seconds)


DEFAULT_EXTENSION = LeaseExtenderConfig().extension
NEVER = sys.float_info.max
"""When to extend a lease that is not to be extended; infinite would mean that this is not known."""


@dataclass(slots=True)
class LeaseCounters:
    """Counts what a `LeaseExtender` has done so far."""

    held: int = 0
    extended: int = 0
    failed: int = 0
    lost: int = 0
    given_up: int = 0
    """Leases that reached ``max_lease_seconds``."""


class Extendable(Protocol):
    """What a message needs so that its lease can be extended."""

    @property
    def id(self) -> str:
        """The message's id."""
        ...

    def extend_visibility(self, timeout: Any) -> object:
        """Make the lease end ``timeout`` seconds from now."""
        ...


class Lease:
    """The lease on one message: when it ends, and whether it was lost."""

    due = math.inf
    """When to extend it, as a ``time.monotonic`` reading; infinite until it is planned."""
    scheduler: LeaseScheduler | None = None
    """The scheduler that extends it; None if it is not extended."""
    cancelled = False
    """Whether the caller has cancelled the message."""
    on_cancel: Callable[[], object] | None = None
    """Called once when that becomes known, in the thread that extends leases."""
    is_settling = False
    """Whether a step that settles the message is under way: a refusal may then be due to it."""
    _deadline = math.inf
    _lost = False
    _is_released = False

    def __init__(
        self, extender: "LeaseExtender | None", message: Any, config: LeaseExtenderConfig
    ) -> None:
        self.message = message
        self.config = config
        self.batchable = type(message) is Message
        """Whether the message is our own class, so that many can be extended in one step."""
        self._extender = extender
        self._clock: Clock = message._mailbox.store.clock if self.batchable else SYSTEM_CLOCK
        self._since = self._clock.monotonic()

    @property
    def deadline(self) -> float:
        """When the lease ends, as a monotonic reading of the mailbox's clock."""
        deadline: float = self.message._lease_deadline if self.batchable else self._deadline
        return deadline

    @property
    def lost(self) -> bool:
        """Whether the lease is over: its deadline has passed, or an extension was refused."""
        deadline = self.message._lease_deadline if self.batchable else self._deadline
        return self._lost or self._clock.monotonic() >= deadline

    def remaining(self) -> float:
        """Return the number of seconds until the deadline."""
        deadline = self.message._lease_deadline if self.batchable else self._deadline
        return deadline - self._clock.monotonic()

    def held_seconds(self) -> float:
        """Return the number of seconds since the message was received."""
        return self._clock.monotonic() - self._since

    def raise_if_lost(self) -> None:
        """Raise `LeaseLostError` if the lease is over, so that useless work stops."""
        if self.lost:
            raise LeaseLostError(
                f"the lease on message {getattr(self.message, 'id', '-')} is over, "
                f"another worker may be handling it now"
            )

    def adjust(self, config: LeaseExtenderConfig) -> None:
        """Extend this lease by another config from now on."""
        self.config = config
        if self._extender is not None:
            self._extender.schedule(self)

    def abandon(self) -> None:
        """Treat the lease as lost from now on."""
        self._lost = True

    def cancel(self) -> None:
        """Record that the caller has cancelled the message."""
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()

    def plan(self) -> None:
        """Set `due` to the first extension, counted from when the message was received."""
        held = self._clock.monotonic() - self._since
        self.due = next_beat(time.monotonic() - held, self.config, self.remaining() + held)

    def plan_next(self) -> None:
        """Set `due` to the next extension, counted from now."""
        self.due = next_beat(time.monotonic(), self.config, self.remaining())

    def next_extension(self) -> float | None:
        """Return the seconds to extend by now: 0 if not needed now, None if never again."""
        config, extension = self.config, self.config.extension
        if config.max_lease_seconds is not None:
            extension = min(
                extension, self._since + config.max_lease_seconds - self._clock.monotonic()
            )
            if extension <= 0:
                return None
        remaining = self.remaining()
        if math.isfinite(remaining) and remaining >= extension:
            # An extension must never shorten the lease. If ``max_lease_seconds`` is what limits
            # it, there is nothing left to extend.
            return 0.0 if extension == config.extension else None
        return extension

    def extended(self, seconds: float) -> None:
        """Record an extension that the mailbox granted."""
        self._deadline = self._clock.monotonic() + seconds
        self._count("extended")
        self._note_extension(None)
        logger.debug("Extended visibility for message %s by %g seconds", self.message.id, seconds)

    def refused(self) -> None:
        """Record that the mailbox refused an extension because the lease is over."""
        self._lost = True
        self._count("lost")
        self._note_extension(None)
        logger.warning(
            "Lease extension failed for message %s: receipt handle expired", self.message.id
        )

    def failed(self, error: Exception) -> None:
        """Record that an extension failed with an error; it is tried again at the next beat."""
        self._count("failed")
        self._note_extension(error)
        logger.warning("Lease extension failed for message %s: %s", self.message.id, error)

    def given_up(self) -> None:
        """Record that the lease has reached ``max_lease_seconds``."""
        self._count("given_up")
        logger.warning(
            "Message %s was leased for the maximum of %g seconds: its lease is no longer extended",
            self.message.id,
            self.config.max_lease_seconds,
        )

    def release(self) -> None:
        """Stop extending the lease; never blocks. Released again, it stays so."""
        if self._is_released:
            return
        self._is_released = True
        if self._extender is not None:
            self._extender.counters.held -= 1
        if self.scheduler is not None:
            self.scheduler.drop(self)

    def _count(self, what: str) -> None:
        if self._extender is not None:
            counters = self._extender.counters
            setattr(counters, what, getattr(counters, what) + 1)

    def _note_extension(self, error: Exception | None) -> None:
        if self._extender is not None and self._extender.heartbeat is not None:
            self._extender.heartbeat.note_extension(error)


class _NoMessage:
    id = "-"


_NO_LEASE = Lease(None, _NoMessage(), LeaseExtenderConfig(enabled=False))
CURRENT: ContextVar[Lease] = ContextVar("lease", default=_NO_LEASE)
"""The lease on the message that the current handler handles."""


def current_lease() -> Lease:
    """Return the lease of the message being handled; outside a handler, one that never ends."""
    return CURRENT.get()


class LeaseExtender:
    """Extends the leases of messages while they are handled.

    ::

        extender = LeaseExtender(config=LeaseExtenderConfig(interval=30))
        with extender.extend(msg):
            process(msg.body)
        msg.acknowledge()

    All extenders of a process share one thread for each backend; it ends when no lease is left.
    With a ``heartbeat``, every extension reports to it whether the mailbox was reached.
    """

    def __init__(
        self,
        config: LeaseExtenderConfig | None = None,
        *,
        scheduler: LeaseScheduler | None = None,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.config = config if config is not None else LeaseExtenderConfig()
        self.counters = LeaseCounters()
        self.heartbeat = heartbeat
        self._scheduler = scheduler
        self._latest: tuple[object, Any] = (None, None)

    @contextmanager
    def extend(self, msg: Extendable) -> Iterator[Lease]:
        """Extend the lease on ``msg`` inside the block; failures are logged, never raised."""
        lease = self.hold(msg)
        token = CURRENT.set(lease)
        try:
            yield lease
        finally:
            CURRENT.reset(token)
            lease.release()

    def hold(self, msg: Extendable, config: LeaseExtenderConfig | None = None) -> Lease:
        """Extend the lease on ``msg`` until `Lease.release` is called."""
        lease = Lease(self, msg, config if config is not None else self.config)
        self.counters.held += 1
        if lease.config.enabled:
            if beat_length(lease.config, lease.remaining()) < PLAN_LATER_SECONDS:
                lease.plan()  # else the scheduler plans it: most leases are released before that
            self._add(lease)
        elif lease.batchable:
            lease.due = NEVER  # not extended, but its message may be cancelled
            self._add(lease)
        return lease

    def schedule(self, lease: Lease) -> None:
        """Start or stop extending a lease, as its config says."""
        if lease.config.enabled:
            lease.plan_next()
            if lease.scheduler is None:
                self._add(lease)
            else:
                lease.scheduler.add(lease)
        elif lease.scheduler is not None:
            lease.scheduler.drop(lease)

    def scheduler_of(self, mailbox: Any) -> LeaseScheduler:
        """Return the scheduler for a mailbox; mailboxes of one backend share one."""
        return self._scheduler or SCHEDULERS.of(backend_of(getattr(mailbox, "store", mailbox)))

    def _add(self, lease: Lease) -> None:
        message = lease.message
        place = message._mailbox if lease.batchable else type(message)
        known, scheduler = self._latest
        if place is not known:  # most extenders serve one mailbox, so the last one is cached
            scheduler = self.scheduler_of(place)
            self._latest = place, scheduler
        lease.scheduler = scheduler
        scheduler.add(lease)
