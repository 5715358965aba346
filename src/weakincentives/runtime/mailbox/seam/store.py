"""The seam: what a backend must do. It knows nothing of types, replies or loops.

A Store is bound to one queue. Each coroutine is one atomic step on a batch; a single message is a
batch of one. Payloads are opaque: bytes, except in memory, where they are objects.
The steps of a blocking store never suspend, and are finished when they return. No transaction may
stay open while a step suspends, because another task would join it.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from weakincentives.clock import Clock
from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.limits import Limits

from .driver import Steps
from .reply_table import ReplyRow

__all__ = [
    "REMEMBER_IDS",
    "REMEMBER_SEQUELS",
    "GivingBack",
    "Leased",
    "Leases",
    "Leasing",
    "Listener",
    "Outgoing",
    "QueueStats",
    "Seen",
    "Store",
]


GivingBack: TypeAlias = Literal["failed", "put_off", "undone"]
"""Why a message is given back, which decides what counts.

``failed``: its handler failed; the nack count rises. ``put_off``: its handler asked to have it
later; the nack and the put-off count rise. ``undone``: no handler ran it; it is as if it had not
been leased, so the delivery count is what it was before.
"""
REMEMBER_IDS = 300.0
"""Seconds for which an id that a sender chose stays known."""
REMEMBER_SEQUELS = 14 * 86_400.0
"""Seconds for which a `SequelId` stays known, unless `IdKeeper.forget_soon` ends that."""


class Outgoing(NamedTuple):
    """A message that is to be stored."""

    id: str
    payload: Any
    delay: float = 0.0
    given: bool = False
    """Whether the sender chose the id; if so it stays known, so that a repeat is recognised."""
    remember: float = REMEMBER_IDS
    """Seconds for which a chosen id stays known."""
    reply_id: str | None = None
    """The reply that a caller waits for; a store that keeps its replies too may record starts."""


class Leased(NamedTuple):
    """One delivery: a message, and the handle that proves the lease on it."""

    id: str
    handle: str
    payload: Any
    delivery_count: int
    nack_count: int
    enqueued_at: float
    first_received_at: float
    put_off_count: int = 0
    reply: ReplyRow | None = None
    """The reply to it, if this step has recorded the start there; see `ReplyTable.start`."""


class Leases(NamedTuple):
    """The result of one lease step."""

    messages: Sequence[Leased]
    acknowledged: Sequence[bool] = ()
    next_due: float | None = None
    """Seconds until something now leased or delayed becomes visible; None if there is nothing."""
    expired: int = 0
    """The number of leases that were found to have run out."""
    dropped: int = 0
    """The number of messages older than the retention, which were removed unread."""
    at: float | None = None
    """When the leases began at the earliest, by the store's clock; None: when the step began."""
    set_aside: int = 0
    """The number of records that cannot be leased and were moved out of the queue."""


class Seen(NamedTuple):
    """A pending message, seen without leasing it."""

    id: str
    payload: Any
    delivery_count: int
    nack_count: int
    enqueued_at: float


class QueueStats(NamedTuple):
    """Exact counts where the backend has them."""

    pending: int
    in_flight: int
    delayed: int
    oldest_age: float | None
    """Age in seconds of the oldest message that waits to be received."""
    unreadable: int = 0
    """The number of records that were set aside because they cannot be leased."""
    paused: bool = False
    """Whether nothing is leased until the queue is resumed."""


class Listener(Protocol):
    """A blocked consumer: it waits until there may be a message, then leases."""

    async def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait up to ``wait`` seconds until there may be a message, then lease as `Store` does."""
        ...

    def interrupt(self) -> None:
        """End the wait in progress, and any later one, at once; safe from any thread."""
        ...

    def close(self) -> None:
        """Release what the waiting needed."""
        ...


class Store(Protocol):
    """One queue of a backend."""

    name: str
    limits: Limits
    capabilities: Capabilities
    clock: Clock
    look_interval: float
    """A blocked consumer leases again after this many seconds at the latest."""

    @property
    def steps(self) -> Steps:
        """Whether the steps block, suspend or do neither."""
        ...

    async def put(self, messages: Sequence[Outgoing]) -> int | None:
        """Add the messages, all or none; skip those whose chosen id is known already.

        Return how many were added, or None if the backend cannot tell.
        """
        ...

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step.

        With ``ids``, lease only pending messages with these ids, wherever they are in the queue.
        """
        ...

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        ...

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``; False where the lease had ended.

        Without a delay they go to the end of the queue; those that are ``undone`` return to their
        place if the backend can do that at no extra cost.
        """
        ...

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Make the leases end ``seconds`` from now; False where they had ended already."""
        ...

    async def purge(self) -> int:
        """Remove every message, leased ones too, forget all ids, and return how many there were."""
        ...

    async def stats(self) -> QueueStats:
        """Count the messages by state."""
        ...

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Return pending messages, in the order in which they would be received."""
        ...

    def listen(self, *, in_loop: bool = False) -> Listener:
        """Return a new listener; the caller closes it.

        It waits in this thread or, with ``in_loop``, in an event loop, which it may not block.
        """
        ...

    def close(self) -> None:
        """Release the resources of the backend; no other method may be called afterwards."""
        ...


class Leasing(Protocol):
    """The part of a store that receiving needs."""

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease, in one step."""
        ...

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        ...

    def listen(self) -> Listener:
        """Return a new listener; the caller closes it."""
        ...
