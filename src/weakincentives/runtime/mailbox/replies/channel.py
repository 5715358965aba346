"""The worker's end of a reply."""

from typing import Generic, TypeVar

from weakincentives.runtime.mailbox.errors import ReplyAlreadySentError

from .typed_reply_table import TypedReplyTable

__all__ = ["ReplyChannel"]

T = TypeVar("T")


class ReplyChannel(Generic[T]):
    """The worker's end of a reply: takes one value."""

    def __init__(self, replies: TypedReplyTable, id: str, owner: str | None = None) -> None:
        self._replies = replies
        self._owner = owner
        self._sent = False
        self.id = id

    def send(self, value: T) -> None:
        """Store the value; if the caller no longer waits, nothing happens."""
        self._replies.run("send", lambda: self._send(value))

    async def send_async(self, value: T) -> None:
        """Do what `send` does."""
        await self._replies.run_async(lambda: self._send(value))

    def is_open(self) -> bool:
        """Whether the sender of this message still waits: not replied to, cancelled or expired."""
        return self._replies.run("is_open", self._awaits_reply)

    async def is_open_async(self) -> bool:
        """Do what `is_open` does."""
        return await self._replies.run_async(self._awaits_reply)

    async def _awaits_reply(self) -> bool:
        """Return whether the reply is pending and belongs to this message."""
        row = await self._replies.table.get(self.id)
        return row is not None and row.is_awaited_from(self._owner)

    async def _resolve(self, value: T) -> bool:
        """Store the value; False if the reply is not pending, or belongs to another message."""
        return await self._replies.table.resolve(self.id, self._replies.sealed(value), self._owner)

    async def _send(self, value: T) -> None:
        if self._sent:
            raise ReplyAlreadySentError
        await self._resolve(value)
        self._sent = True
