"""The seam for replies: each is one value for one caller, as an opaque payload."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, runtime_checkable

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass

from .driver import Steps

__all__ = [
    "LINGER",
    "MOST_PARTS",
    "MOST_PART_BYTES",
    "MOST_READ",
    "JobStart",
    "PartRow",
    "ReplyEntry",
    "ReplyListener",
    "ReplyRow",
    "ReplyState",
    "ReplyStore",
    "ReplyTable",
]

T = TypeVar("T", default=Any)

LINGER = 60.0
"""A settled reply stays readable for at least this many seconds more."""
MOST_PARTS = 10_000
"""How many parts of a reply are kept; then the oldest are dropped."""
MOST_PART_BYTES = 16 * 2**20
"""How many bytes of parts a reply keeps, where payloads are bytes; then the oldest are dropped."""

MOST_READ = 1000
"""How many parts a reader gets at a time."""


class ReplyState(StrEnum):
    """The state of a reply."""

    PENDING = "pending"
    RESOLVED = "resolved"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class JobStart(NamedTuple):
    """The last time that a worker received the message of a reply."""

    handle: str
    """The receipt handle of that delivery."""
    worker: str
    deliveries: int
    """How often the message had been received then."""
    at: float = 0.0
    """When that was, in seconds since the epoch; the table sets it."""
    series: int = 0
    """Counts the starts of this reply, through replays too; the table sets it."""


class PartRow(NamedTuple):
    """A part of a reply as a table keeps it."""

    number: int
    """Counts the parts of the reply from 0, and is never used again."""
    series: int
    """The start that emitted it: `JobStart.series`."""
    payload: Any


class ReplyRow(NamedTuple):
    """A reply as a table keeps it; times in seconds since the epoch."""

    id: str
    state: ReplyState
    payload: Any
    created_at: float
    expires_at: float
    resolved_at: float | None
    owner: str | None = None
    """The queue and message that the reply belongs to; None if any worker may answer."""
    ttl: float = 0.0
    """For how many seconds the caller said that it would wait."""
    keep: float = 0.0
    """For how many seconds the reply can be read after it was settled; 0: until it was read."""
    start: JobStart | None = None
    """The last start; None if no worker has received the message."""
    parts: int = 0
    """How many parts were emitted: the index of the next one."""

    def belongs_to(self, owner: str | None) -> bool:
        """Whether this owner may answer; None is not checked."""
        return owner is None or self.owner is None or owner == self.owner

    def is_awaited_from(self, owner: str | None) -> bool:
        """Whether a caller waits for this owner's reply; False if the reply has another owner."""
        return self.state == ReplyState.PENDING and self.belongs_to(owner)


class ReplyListener(Protocol):
    """One caller that waits for one reply."""

    async def get(self, wait: float) -> ReplyRow | None:
        """Return the row when it is no longer pending, or as it is after ``wait`` seconds."""
        ...

    async def get_parts(self, first: int, wait: float) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        """Return the parts from index ``first`` on, and the row as it was just before.

        Waits up to ``wait`` seconds until there is such a part or the reply is no longer pending;
        it may also return sooner, with no part.
        """
        ...

    def close(self) -> None:
        """Release what the waiting needed."""
        ...


class ReplyTable(Protocol):
    """Replies of a backend; each coroutine is one atomic step, judged by the backend's clock."""

    @property
    def steps(self) -> Steps:
        """Whether the steps block, suspend or do neither."""
        ...

    @property
    def keeps_objects(self) -> bool:
        """Whether payloads are objects of this process rather than bytes."""
        ...

    async def create(
        self, id: str, ttl: float, owner: str | None = None, keep: float = 0.0
    ) -> bool:
        """Add a pending reply that expires after ``ttl`` seconds; False if the id is taken.

        ``owner`` names the queue and the message that it belongs to. From when it is settled, or
        has expired, it can be read for at least ``keep`` seconds.
        """
        ...

    async def reopen(self, id: str, ttl: float, owner: str, keep: float = 0.0) -> bool:
        """Make a reply pending again, for a message that is replayed; False if it must not be.

        A failed, pending or expired one gets this owner and ``ttl`` and ``keep`` of its own from
        now on; one that is not there is created. One that is resolved or cancelled stays.
        """
        ...

    async def start(self, id: str, owner: str, start: JobStart) -> ReplyRow | None:
        """Record that a worker has received the message, and return the row, None if there is none.

        Nothing is recorded if the reply is not pending, has another owner, or has a start with more
        ``deliveries``. The table sets ``at``, and ``series`` to one more than before.
        """
        ...

    async def prolong(self, id: str, seconds: float, owner: str) -> bool:
        """Have a pending reply expire ``seconds`` later; its ``ttl`` stays what its caller said.

        False if it is not pending, or has another owner.
        """
        ...

    async def resolve(
        self, id: str, payload: Any, owner: str | None = None, *, failed: bool = False
    ) -> bool:
        """Settle a pending reply as resolved, or as failed, and keep it for `LINGER` or ``keep``.

        False if it is not pending, or if both this step and the reply name an owner and these
        differ.
        """
        ...

    async def emit(self, id: str, owner: str, handle: str, payloads: Sequence[Any]) -> bool:
        """Add parts; False if the reply is not pending, or ``handle`` is not its last start's."""
        ...

    async def parts(self, id: str, first: int, limit: int) -> Sequence[PartRow]:
        """Return up to ``limit`` parts from index ``first`` on; dropped ones are left out."""
        ...

    async def cancel(self, id: str) -> bool:
        """Cancel the reply if it is pending; False otherwise."""
        ...

    async def get(self, id: str) -> ReplyRow | None:
        """Return a reply as it is, or None."""
        ...

    async def consume(self, id: str) -> ReplyRow | None:
        """Remove a resolved reply, with its parts, and return its row; others get None."""
        ...

    async def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        ...

    async def forget(self, id: str) -> object:
        """Remove a reply that was read; a crash may undo this, because the reply expires anyway."""
        ...

    async def scan_expired(self, limit: int) -> Sequence[str]:
        """Return the ids of expired replies."""
        ...

    async def cleanup_expired(self, limit: int) -> int:
        """Remove expired replies and return how many."""
        ...

    def listen(self, id: str, *, in_loop: bool = False) -> ReplyListener:
        """Return a new listener, which waits in this thread or in an event loop.

        The caller closes it.
        """
        ...


@FrozenDataclass()
class ReplyEntry(Generic[T]):
    """A reply as a `ReplyStore` shows it."""

    id: str
    value: T | None
    state: ReplyState
    created_at: datetime
    expires_at: datetime
    resolved_at: datetime | None


@runtime_checkable
class ReplyStore(Protocol[T]):
    """Backing storage for replies, with a time to live and an atomic consume."""

    def create(self, id: str, *, ttl: float) -> bool:
        """Add a pending reply; False if the id is taken."""
        ...

    def resolve(self, id: str, value: T) -> bool:
        """Store the value; False if the reply is no longer pending."""
        ...

    def cancel(self, id: str) -> bool:
        """Cancel the reply; False if it is no longer pending."""
        ...

    def get(self, id: str) -> ReplyEntry[T] | None:
        """Return a reply as it is, or None."""
        ...

    def consume(self, id: str) -> ReplyEntry[T] | None:
        """Return and remove a resolved reply; only one caller gets it."""
        ...

    def delete(self, id: str) -> bool:
        """Remove a reply; False if there was none."""
        ...

    def scan_expired(self, *, limit: int = 100) -> Sequence[str]:
        """Return the ids of expired replies."""
        ...

    def cleanup_expired(self, *, limit: int = 100) -> int:
        """Remove expired replies and return how many."""
        ...
