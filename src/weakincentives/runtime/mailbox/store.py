"""The seam: what a backend must do, and nothing of types, replies or loops.

A Store is bound to one queue. Each method is one atomic step; a batch is the primitive, a single
message is a batch of one. Payloads are opaque: bytes, except in memory, where they are objects.
"""

from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from weakincentives.clock import Clock

from .flow import Steps
from .limits import Capabilities, Limits
from .reply_table import ReplyTable

__all__ = [
    "AsyncStore",
    "Leased",
    "Leases",
    "Listener",
    "Outgoing",
    "QueueStats",
    "ReplyMaker",
    "Seen",
    "Store",
]


class Outgoing(NamedTuple):
    """A message on its way in."""

    id: str
    payload: Any
    delay: float = 0.0
    given: bool = False
    """The sender chose the id: it stays known for five minutes, so that a repeat is recognised."""


class Leased(NamedTuple):
    """One delivery: a message, and the handle that proves the lease on it."""

    id: str
    handle: str
    payload: Any
    delivery_count: int
    nack_count: int
    enqueued_at: float
    first_received_at: float


class Leases(NamedTuple):
    """What one look into the queue brought."""

    messages: Sequence[Leased]
    acknowledged: Sequence[bool] = ()
    next_due: float | None = None
    """Seconds until something now leased or delayed becomes visible; None if there is nothing."""
    expired: int = 0
    """Leases that were found to have run out."""
    dropped: int = 0
    """Messages older than the retention, removed unread."""
    at: float | None = None
    """When the leases began at the earliest, on the store's clock; None: when the step began."""


class Seen(NamedTuple):
    """A message that waits, looked at without leasing it."""

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


class Listener(Protocol):
    """One blocked consumer: waits for a sign of a message, then leases."""

    def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait up to ``wait`` seconds for a sign of a message, then lease as `Store.lease` does."""
        ...

    async def lease_async(self, count: int, seconds: float, wait: float) -> Leases:
        """Do the same without occupying a thread while waiting."""
        ...

    def interrupt(self) -> None:
        """End the wait in progress, and any later one, at once; safe from any thread."""
        ...

    def close(self) -> None:
        """Let go of whatever the waiting needed."""
        ...


class Store(Protocol):
    """One queue of a backend."""

    name: str
    limits: Limits
    capabilities: Capabilities
    clock: Clock
    look_interval: float
    """A blocked consumer looks again after this many seconds at the latest."""
    steps: ClassVar[Steps]

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages, all or none; chosen ids that are known are left as they are."""
        ...

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step.

        With ``ids``, lease only those of them that wait to be received, wherever they stand.
        """
        ...

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        ...

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``; False where the lease had ended."""
        ...

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        ...

    def purge(self) -> int:
        """Remove every message, leased ones too, and return how many there were."""
        ...

    def stats(self) -> QueueStats:
        """Count the messages by state."""
        ...

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Look at messages that wait, in the order in which they would be received."""
        ...

    def listen(self) -> Listener:
        """Return a new listener; the caller closes it."""
        ...

    def together(self) -> AbstractContextManager[None]:
        """Make the steps taken inside, in this thread, one step where the backend can."""
        ...

    def close(self) -> None:
        """Let go of the backend; no step may follow."""
        ...


@runtime_checkable
class ReplyMaker(Protocol):
    """A Store that can make the pending reply to a message in the step that adds the message."""

    def is_beside(self, table: ReplyTable) -> bool:
        """Whether replies of this table are within one step's reach."""
        ...

    def put_expecting(self, message: Outgoing, reply_id: str, ttl: float) -> Any:
        """Add the message, and the pending reply to it: both or neither."""
        ...


class AsyncStore(Protocol):
    """A Store whose steps are awaited; in all else the same."""

    name: str
    limits: Limits
    capabilities: Capabilities
    clock: Clock
    look_interval: float
    steps: ClassVar[Steps]

    def put(self, messages: Sequence[Outgoing]) -> Awaitable[None]: ...

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Awaitable[Leases]: ...

    def acknowledge(self, handles: Sequence[str]) -> Awaitable[Sequence[bool]]: ...

    def release(self, handles: Sequence[str], delay: float) -> Awaitable[Sequence[bool]]: ...

    def extend(self, handles: Sequence[str], seconds: float) -> Awaitable[Sequence[bool]]: ...

    def purge(self) -> Awaitable[int]: ...

    def stats(self) -> Awaitable[QueueStats]: ...

    def peek(self, limit: int, offset: int = 0) -> Awaitable[Sequence[Seen]]: ...

    def listen(self) -> Listener: ...

    def together(self) -> AbstractContextManager[None]: ...

    def close(self) -> Awaitable[None]: ...
