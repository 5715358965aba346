"""The caller's end of a reply."""

import time
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from weakincentives.runtime.mailbox.errors import (
    MailboxError,
    ReplyCancelledError,
    ReplyTimeoutError,
)
from weakincentives.runtime.mailbox.limits import check_positive
from weakincentives.runtime.mailbox.seam.reply_table import ReplyListener, ReplyRow, ReplyState

from .typed_reply_table import TypedReplyTable

__all__ = ["PendingReply", "Reply"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NOTHING: Any = object()


@runtime_checkable
class Reply(Protocol[T_co]):
    """The caller's handle on a reply."""

    @property
    def id(self) -> str:
        """The reply's own id."""
        ...

    def wait(self, *, timeout: float | None = None) -> T_co:
        """Block until the reply is there; None waits until the reply's own expiry."""
        ...

    async def wait_async(self, *, timeout: float | None = None) -> T_co:
        """Do what `wait` does, without blocking the event loop."""
        ...

    def poll(self) -> T_co | None:
        """Return the reply if it is there, else None."""
        ...

    def is_ready(self) -> bool:
        """Whether the reply is there."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the reply was cancelled."""
        ...

    def cancel(self) -> bool:
        """Stop waiting for good; a worker that has not started the job skips it."""
        ...


class PendingReply(Generic[T]):
    """A `Reply` kept in a `ReplyTable`."""

    def __init__(self, replies: TypedReplyTable, id: str, timeout: float) -> None:
        self.id = id
        self._replies = replies
        self._expires = time.monotonic() + timeout
        self._value: Any = NOTHING
        self._cancelled = False

    def wait(self, *, timeout: float | None = None) -> T:
        """Block until the reply is there; later calls return the same value."""
        return self._replies.run("wait", lambda: self._wait(timeout, in_loop=False))

    async def wait_async(self, *, timeout: float | None = None) -> T:
        """Do what `wait` does, without blocking the event loop."""
        return await self._wait(timeout, in_loop=True)

    def poll(self) -> T | None:
        """Return the reply if it is there, else None."""
        return self._replies.run("poll", self._poll)

    async def poll_async(self) -> T | None:
        """Do what `poll` does."""
        return await self._replies.run_async(self._poll)

    def is_ready(self) -> bool:
        """Whether the reply is there."""
        return self._replies.run("is_ready", self._is_ready)

    async def is_ready_async(self) -> bool:
        """Do what `is_ready` does."""
        return await self._replies.run_async(self._is_ready)

    def is_cancelled(self) -> bool:
        """Whether the reply was cancelled."""
        return self._replies.run("is_cancelled", self._is_cancelled)

    async def is_cancelled_async(self) -> bool:
        """Do what `is_cancelled` does."""
        return await self._replies.run_async(self._is_cancelled)

    def cancel(self) -> bool:
        """Stop waiting for good; False if the reply is no longer pending."""
        return self._replies.run("cancel", self._cancel)

    async def cancel_async(self) -> bool:
        """Do what `cancel` does."""
        return await self._replies.run_async(self._cancel)

    async def _wait(self, timeout: float | None, *, in_loop: bool) -> T:
        deadline = self._expires
        if timeout is not None:
            if timeout != 0:
                check_positive("timeout", timeout)
            deadline = min(deadline, time.monotonic() + timeout)
        if self._value is not NOTHING:
            return self._value  # type: ignore[no-any-return]
        listener = self._replies.table.listen(self.id, in_loop=in_loop)
        try:
            await self._listen(listener, deadline)
            await (self._replies.run_async(self._forget) if in_loop else self._forget())
            return self._value  # type: ignore[no-any-return]
        finally:
            listener.close()

    async def _listen(self, listener: ReplyListener, deadline: float) -> None:
        while not self._accept(await listener.get(max(deadline - time.monotonic(), 0.0))):
            if time.monotonic() >= deadline:
                raise ReplyTimeoutError(f"no reply to {self.id} yet; wait() can be called again")

    async def _poll(self) -> T | None:
        if self._value is NOTHING:
            if not self._accept(await self._replies.table.get(self.id)):
                return None
            await self._forget()
        return self._value  # type: ignore[no-any-return]

    def _accept(self, row: ReplyRow | None) -> bool:
        """Keep the value of a resolved row and return True; False if the reply is pending."""
        if row is not None and row.state == ReplyState.PENDING:
            return False
        if row is not None and row.state == ReplyState.RESOLVED:
            self._value = self._replies.value(row)
            return True
        if self._value is not NOTHING:  # another thread waited too, and has read and removed it
            return True
        if self._cancelled or (row is not None and row.state == ReplyState.CANCELLED):
            self._cancelled = True
            raise ReplyCancelledError(f"reply {self.id} was cancelled")
        raise ReplyTimeoutError(f"reply {self.id} has expired")

    async def _forget(self) -> None:
        try:
            await self._replies.table.forget(self.id)
        except MailboxError:
            pass  # it expires by itself

    async def _is_ready(self) -> bool:
        if self._value is not NOTHING:
            return True
        row = await self._replies.table.get(self.id)
        return row is not None and row.state == ReplyState.RESOLVED

    async def _is_cancelled(self) -> bool:
        if not self._cancelled:
            row = await self._replies.table.get(self.id)
            self._cancelled = row is not None and row.state == ReplyState.CANCELLED
        return self._cancelled

    async def _cancel(self) -> bool:
        if self._value is not NOTHING or self._cancelled:
            return False
        self._cancelled = await self._replies.table.cancel(self.id)
        return self._cancelled
