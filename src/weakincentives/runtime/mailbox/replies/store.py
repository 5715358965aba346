"""The public reply store, over any `ReplyTable`."""

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from weakincentives.runtime.mailbox.limits import check_positive
from weakincentives.runtime.mailbox.message import as_datetime
from weakincentives.runtime.mailbox.seam.reply_table import (
    ReplyEntry,
    ReplyRow,
    ReplyTable,
)

from .typed_reply_table import DEFAULT_LIMITS, TypedReplyTable

__all__ = ["StoredReplies"]

T = TypeVar("T")


class StoredReplies(Generic[T]):
    """The `ReplyStore` over any `ReplyTable`, with an ``_async`` twin of each method."""

    def __init__(self, table: ReplyTable, value_type: Any = Any) -> None:
        self._table = table
        self._replies = TypedReplyTable(table, value_type)

    def create(self, id: str, *, ttl: float) -> bool:
        """Add a pending reply; False if the id is taken."""
        return self._replies.run(
            "create", lambda: self._table.create(id, check_positive("ttl", ttl))
        )

    async def create_async(self, id: str, *, ttl: float) -> bool:
        """Do what `create` does."""
        return await self._replies.run_async(
            lambda: self._table.create(id, check_positive("ttl", ttl))
        )

    def resolve(self, id: str, value: T) -> bool:
        """Store the value; False if the reply is no longer pending."""
        return self._replies.run(
            "resolve", lambda: self._table.resolve(id, self._replies.sealed(value))
        )

    async def resolve_async(self, id: str, value: T) -> bool:
        """Do what `resolve` does."""
        return await self._replies.run_async(
            lambda: self._table.resolve(id, self._replies.sealed(value))
        )

    def cancel(self, id: str) -> bool:
        """Cancel the reply; False if it is no longer pending."""
        return self._replies.run("cancel", lambda: self._table.cancel(id))

    async def cancel_async(self, id: str) -> bool:
        """Do what `cancel` does."""
        return await self._replies.run_async(lambda: self._table.cancel(id))

    def get(self, id: str) -> ReplyEntry[T] | None:
        """Return a reply as it is, or None."""
        return self._entry(self._replies.run("get", lambda: self._table.get(id)))

    async def get_async(self, id: str) -> ReplyEntry[T] | None:
        """Do what `get` does."""
        return self._entry(await self._replies.run_async(lambda: self._table.get(id)))

    def consume(self, id: str) -> ReplyEntry[T] | None:
        """Return and remove a resolved reply; only one caller gets it."""
        return self._entry(self._replies.run("consume", lambda: self._table.consume(id)))

    async def consume_async(self, id: str) -> ReplyEntry[T] | None:
        """Do what `consume` does."""
        return self._entry(await self._replies.run_async(lambda: self._table.consume(id)))

    def delete(self, id: str) -> bool:
        """Remove a reply; False if there was none."""
        return self._replies.run("delete", lambda: self._table.delete(id))

    async def delete_async(self, id: str) -> bool:
        """Do what `delete` does."""
        return await self._replies.run_async(lambda: self._table.delete(id))

    def scan_expired(self, *, limit: int = 100) -> Sequence[str]:
        """Return the ids of expired replies."""
        return self._replies.run("scan_expired", lambda: self._table.scan_expired(_page(limit)))

    async def scan_expired_async(self, *, limit: int = 100) -> Sequence[str]:
        """Do what `scan_expired` does."""
        return await self._replies.run_async(lambda: self._table.scan_expired(_page(limit)))

    def cleanup_expired(self, *, limit: int = 100) -> int:
        """Remove expired replies and return how many."""
        return self._replies.run(
            "cleanup_expired", lambda: self._table.cleanup_expired(_page(limit))
        )

    async def cleanup_expired_async(self, *, limit: int = 100) -> int:
        """Do what `cleanup_expired` does."""
        return await self._replies.run_async(lambda: self._table.cleanup_expired(_page(limit)))

    def _entry(self, row: ReplyRow | None) -> ReplyEntry[T] | None:
        if row is None:
            return None
        return ReplyEntry(
            id=row.id,
            value=self._replies.value_of(row),
            state=row.state,
            created_at=as_datetime(row.created_at),
            expires_at=as_datetime(row.expires_at),
            resolved_at=None if row.resolved_at is None else as_datetime(row.resolved_at),
        )


def _page(limit: int) -> int:
    return DEFAULT_LIMITS.batch(limit, "limit")
