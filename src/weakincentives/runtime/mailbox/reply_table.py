"""The seam for replies: where one value waits for one caller, and nothing of its type."""

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Generic, NamedTuple, Protocol

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass

from .flow import Steps

__all__ = ["ReplyEntry", "ReplyListener", "ReplyRow", "ReplyState", "ReplyStore", "ReplyTable"]

T = TypeVar("T", default=Any)

LINGER = 60.0
"""A reply that was resolved stays readable for at least this many seconds more."""


class ReplyState(StrEnum):
    """Where a reply stands."""

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


class ReplyListener(Protocol):
    """One caller that waits for one reply."""

    def get(self, wait: float) -> ReplyRow | None:
        """Return the row once it is settled or gone, or as it stands after ``wait`` seconds."""
        ...

    async def get_async(self, wait: float) -> ReplyRow | None:
        """Do the same without occupying a thread while waiting."""
        ...

    def close(self) -> None:
        """Let go of whatever the waiting needed."""
        ...


class ReplyTable(Protocol):
    """Replies of a backend. Each method is one atomic step, judged by the backend's own clock."""

    steps: ClassVar[Steps]
    keeps_objects: ClassVar[bool]
    """Payloads are objects of this process rather than bytes."""

    def create(self, id: str, ttl: float) -> Any:
        """Add a pending reply that expires after ``ttl`` seconds; False if the id is taken."""
        ...

    def resolve(self, id: str, payload: Any) -> Any:
        """Store the value if the reply is pending, and let it live `LINGER` seconds at least."""
        ...

    def cancel(self, id: str) -> Any:
        """Close the reply if it is pending."""
        ...

    def get(self, id: str) -> Any:
        """Return the `ReplyRow`, or None."""
        ...

    def consume(self, id: str) -> Any:
        """Return and remove the row of a resolved reply, to one caller only; None otherwise."""
        ...

    def delete(self, id: str) -> Any:
        """Remove the reply; False if there was none."""
        ...

    def forget(self, id: str) -> Any:
        """Remove a reply that was read; a crash may undo it, for it expires by itself anyway."""
        ...

    def scan_expired(self, limit: int) -> Any:
        """Return ids of replies whose time is over."""
        ...

    def cleanup_expired(self, limit: int) -> Any:
        """Remove replies whose time is over and return how many."""
        ...

    def listen(self, id: str) -> ReplyListener:
        """Return a new listener; the caller closes it."""
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


class ReplyStore(Protocol[T]):
    """Backing storage for replies, with a time to live and an atomic consume."""

    def create(self, id: str, *, ttl: float) -> bool:
        """Add a pending reply; False if the id is taken."""
        ...

    def resolve(self, id: str, value: T) -> bool:
        """Store the value; False if the reply is not pending any more."""
        ...

    def cancel(self, id: str) -> bool:
        """Close the reply; False if it is not pending any more."""
        ...

    def get(self, id: str) -> ReplyEntry[T] | None:
        """Look at a reply."""
        ...

    def consume(self, id: str) -> ReplyEntry[T] | None:
        """Take a resolved reply, to one caller only."""
        ...

    def delete(self, id: str) -> bool:
        """Remove a reply; False if there was none."""
        ...

    def scan_expired(self, *, limit: int = 100) -> Sequence[str]:
        """Return ids of replies whose time is over."""
        ...

    def cleanup_expired(self, *, limit: int = 100) -> int:
        """Remove replies whose time is over and return how many."""
        ...
