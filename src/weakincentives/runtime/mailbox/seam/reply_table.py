"""The seam for replies: each is one value for one caller, as an opaque payload."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, runtime_checkable

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass

from .driver import Steps

__all__ = ["ReplyEntry", "ReplyListener", "ReplyRow", "ReplyState", "ReplyStore", "ReplyTable"]

T = TypeVar("T", default=Any)

LINGER = 60.0
"""A resolved reply stays readable for at least this many seconds more."""


class ReplyState(StrEnum):
    """The state of a reply."""

    PENDING = "pending"
    RESOLVED = "resolved"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


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

    async def create(self, id: str, ttl: float, owner: str | None = None) -> bool:
        """Add a pending reply that expires after ``ttl`` seconds; False if the id is taken.

        ``owner`` names the queue and the message that it belongs to.
        """
        ...

    async def resolve(self, id: str, payload: Any, owner: str | None = None) -> bool:
        """Store the value if the reply is pending, and keep it for at least `LINGER` seconds.

        False if it is not pending, or if both this step and the reply name an owner and these
        differ.
        """
        ...

    async def cancel(self, id: str) -> bool:
        """Cancel the reply if it is pending; False otherwise."""
        ...

    async def get(self, id: str) -> ReplyRow | None:
        """Return a reply as it is, or None."""
        ...

    async def consume(self, id: str) -> ReplyRow | None:
        """Remove a resolved reply and return its row; only one caller gets it, others get None."""
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
