"""The caller's end of a reply."""

import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxError,
    ReplyCancelledError,
    ReplyFailedError,
    ReplyNotFoundError,
    ReplyTimeoutError,
    SerializationError,
)
from weakincentives.runtime.mailbox.limits import check_positive
from weakincentives.runtime.mailbox.seam.cancels import announce_cancel
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState, can_cancel
from weakincentives.runtime.mailbox.seam.reply_table import (
    PartRow,
    ReplyListener,
    ReplyRow,
    ReplyState,
)
from weakincentives.runtime.mailbox.seam.store import Store

from .failure import failed_error, has_value
from .parts import Part, PartCodec
from .status import JobStatus, message_of, status_of
from .typed_reply_table import TypedReplyTable

__all__ = ["PendingReply", "Reply"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NOTHING: Any = object()


@runtime_checkable
class Reply(Protocol[T_co]):
    """A handle on a reply, for the caller or for anybody who knows its id."""

    @property
    def id(self) -> str:
        """The reply's own id; it can be part of a URL."""
        ...

    @property
    def message_id(self) -> str | None:
        """The id of the message; None until a handle that was made from an id has read it."""
        ...

    def wait(self, *, timeout: float | None = None) -> T_co:
        """Block until the reply is there; None waits until the reply's own expiry.

        Raises `ReplyFailedError` if the job has failed for good, `ReplyCancelledError` if it was
        cancelled, and `ReplyTimeoutError` if the time is over.
        """
        ...

    async def wait_async(self, *, timeout: float | None = None) -> T_co:
        """Do what `wait` does, without blocking the event loop."""
        ...

    def poll(self) -> T_co | None:
        """Return the reply if it is there, None if it is pending; else raise as `wait` does."""
        ...

    def is_ready(self) -> bool:
        """Whether the reply is no longer pending."""
        ...

    def is_cancelled(self) -> bool:
        """Whether the reply was cancelled."""
        ...

    def cancel(self) -> bool:
        """Cancel the job: True if no answer will come, False if the reply was settled before."""
        ...

    def status(self) -> JobStatus:
        """Return what has become of the job."""
        ...

    def parts(
        self, *, timeout: float | None = None, start: int = 0, part_type: Any = None
    ) -> Iterator[Part[Any]]:
        """Iterate over the parts that the handler emits, until the reply is settled."""
        ...

    def parts_async(
        self, *, timeout: float | None = None, start: int = 0, part_type: Any = None
    ) -> AsyncIterator[Part[Any]]:
        """Do what `parts` does, without blocking the event loop."""
        ...


def _no_store(queue: str) -> Store | None:
    return None


class PendingReply(Generic[T]):
    """A `Reply` kept in a `ReplyTable`."""

    def __init__(
        self,
        replies: TypedReplyTable,
        id: str,
        *,
        message_id: str | None = None,
        is_asker: bool = False,
        store_of: Callable[[str], Store | None] = _no_store,
    ) -> None:
        """``store_of`` finds the store of a queue; the asker's handle removes what it has read."""
        self.id = id
        self.message_id = message_id
        self._replies = replies
        self._is_asker = is_asker
        self._store_of = store_of
        self._value: Any = NOTHING
        self._cancelled = False

    def wait(self, *, timeout: float | None = None) -> T:
        """Block until the reply is there; later calls return the same value.

        After a failure, a replay of the message may bring another one.
        """
        return self._replies.run("wait", lambda: self._wait(timeout, in_loop=False))

    async def wait_async(self, *, timeout: float | None = None) -> T:
        """Do what `wait` does, without blocking the event loop."""
        return await self._wait(timeout, in_loop=True)

    def poll(self) -> T | None:
        """Return the reply if it is there, None if it is pending; else raise as `wait` does."""
        return self._replies.run("poll", self._poll)

    async def poll_async(self) -> T | None:
        """Do what `poll` does."""
        return await self._replies.run_async(self._poll)

    def is_ready(self) -> bool:
        """Whether the reply is no longer pending."""
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
        """Cancel the job: True if no answer will come, False if the reply was settled before.

        A message that waits is removed. A handler that runs is told within seconds: an async one
        is cancelled, a plain one sees it in ``job.cancelled``. Its result is dropped.
        """
        return self._replies.run("cancel", self._cancel)

    async def cancel_async(self) -> bool:
        """Do what `cancel` does."""
        return await self._replies.run_async(self._cancel)

    def status(self) -> JobStatus:
        """Return what has become of the job; `ReplyNotFoundError` if there is no such reply."""
        return self._replies.run("status", self._status)

    async def status_async(self) -> JobStatus:
        """Do what `status` does."""
        return await self._replies.run_async(self._status)

    def parts(
        self, *, timeout: float | None = None, start: int = 0, part_type: Any = None
    ) -> Iterator[Part[Any]]:
        """Iterate over the parts that the handler emits, until the reply is settled.

        ``timeout`` is the longest wait for the next part, after which it raises
        `ReplyTimeoutError`. ``start`` is the index of the first part, to go on where another reader
        ended. ``part_type`` is what parts are decoded as.
        """
        index, codec = _checked_start(start), self._part_codec(part_type)
        with self._listening(in_loop=False) as listener:
            for row in self._rows(listener, index, timeout):
                yield codec.part(row)

    async def parts_async(
        self, *, timeout: float | None = None, start: int = 0, part_type: Any = None
    ) -> AsyncIterator[Part[Any]]:
        """Do what `parts` does, without blocking the event loop."""
        index, codec = _checked_start(start), self._part_codec(part_type)
        with self._listening(in_loop=True) as listener:
            async for row in self._rows_async(listener, index, timeout):
                yield codec.part(row)

    def _rows(
        self, listener: ReplyListener, first: int, timeout: float | None
    ) -> Iterator[PartRow]:
        while rows := self._replies.run(
            "parts", partial(self._next_parts, listener, first, timeout)
        ):
            yield from rows
            first = rows[-1].number + 1

    async def _rows_async(
        self, listener: ReplyListener, first: int, timeout: float | None
    ) -> AsyncIterator[PartRow]:
        while rows := await self._next_parts(listener, first, timeout):
            for row in rows:
                yield row
            first = rows[-1].number + 1

    def _listening(self, *, in_loop: bool) -> "closing[ReplyListener]":
        return closing(self._replies.table.listen(self.id, in_loop=in_loop))

    def _part_codec(self, part_type: Any) -> PartCodec:
        return PartCodec(self._replies.table.keeps_objects, part_type)

    async def _next_parts(
        self, listener: ReplyListener, first: int, timeout: float | None
    ) -> Sequence[PartRow]:
        """Return the next parts; none if the reply was settled and all were read."""
        deadline = _deadline(timeout)
        while True:
            row, parts = await listener.get_parts(first, _left(deadline))
            if row is None and not self._is_asker:
                raise self._not_found()
            if parts or row is None or row.state != ReplyState.PENDING:
                return parts
            if time.monotonic() >= deadline:
                raise ReplyTimeoutError(f"no part {first} of reply {self.id} has come in time")

    async def _wait(self, timeout: float | None, *, in_loop: bool) -> T:
        deadline = _deadline(timeout)
        if self._value is not NOTHING:
            return self._value  # type: ignore[no-any-return]
        with self._listening(in_loop=in_loop) as listener:
            row = await self._settled(listener, deadline)
            value = self._accepted(row)
            if self._is_to_be_removed(row):
                await (self._replies.run_async(self._forget) if in_loop else self._forget())
            return value

    async def _settled(self, listener: ReplyListener, deadline: float) -> ReplyRow | None:
        """Return the row once it is no longer pending."""
        while True:
            row = _current(await listener.get(_left(deadline)))
            if not self._is_pending(row):
                return row
            if time.monotonic() >= deadline:
                raise ReplyTimeoutError(
                    f"reply {self.id} has not come yet; wait() can be called again"
                )

    async def _poll(self) -> T | None:
        if self._value is not NOTHING:
            return self._value  # type: ignore[no-any-return]
        row = await self._row()
        if self._is_pending(row):
            return None
        value = self._accepted(row)
        if self._is_to_be_removed(row):
            await self._forget()
        return value

    def _is_pending(self, row: ReplyRow | None) -> bool:
        if row is not None and self.message_id is None:
            self._note_message(row)
        return row is not None and row.state == ReplyState.PENDING

    def _is_to_be_removed(self, row: ReplyRow | None) -> bool:
        """Whether to remove the reply: only the asker does, only a value, only without ``keep``."""
        return (
            self._is_asker and row is not None and row.state == ReplyState.RESOLVED and not row.keep
        )

    def _accepted(self, row: ReplyRow | None) -> T:
        """Return the value of a settled reply, or raise what its caller is told."""
        if row is not None and row.state == ReplyState.RESOLVED:
            self._value = self._replies.value(row)
        if self._value is not NOTHING:  # or another thread waited too, and has read and removed it
            return self._value  # type: ignore[no-any-return]
        if row is not None and row.state == ReplyState.FAILED:
            # Not kept: a replay of the message may bring another answer.
            envelope = self._replies.sealer.open(row.payload)
            if has_value(envelope):
                return self._replies.sealer.body(envelope)  # type: ignore[no-any-return]
            raise failed_error(self.id, envelope)
        if self._cancelled or (row is not None and row.state == ReplyState.CANCELLED):
            self._cancelled = True
            raise ReplyCancelledError(f"reply {self.id} was cancelled")
        if row is None and not self._is_asker:
            raise self._not_found()
        raise ReplyTimeoutError(f"reply {self.id} has expired")

    async def _forget(self) -> None:
        with suppress(MailboxError):  # it expires by itself
            await self._replies.table.forget(self.id)

    async def _is_ready(self) -> bool:
        if self._value is not NOTHING:
            return True
        row = await self._row()
        if row is None and not self._is_asker:
            raise self._not_found()
        return not self._is_pending(row)

    async def _is_cancelled(self) -> bool:
        if not self._cancelled:
            row = await self._replies.table.get(self.id)
            self._cancelled = row is not None and row.state == ReplyState.CANCELLED
        return self._cancelled

    async def _cancel(self) -> bool:
        if self._value is not NOTHING or self._cancelled:
            return False
        table = self._replies.table
        row = None if self._is_asker else await table.get(self.id)
        if row is None and not self._is_asker:
            raise self._not_found()
        self._cancelled = await table.cancel(self.id)
        if self._cancelled:
            # Read again: a replay may have given the reply to another message.
            row = await table.get(self.id) or row
            if row is not None:
                await self._cancel_message(row)
        return self._cancelled

    async def _cancel_message(self, row: ReplyRow) -> None:
        """Remove the message, or notify its handler; if neither works, only the result is lost."""
        message = message_of(row)
        if message is None:
            return
        with suppress(MailboxError):  # the reply is cancelled, and that is what counts
            store = self._store_of(message[0])
            if store is None or not can_cancel(store):
                return
            try:
                await store.cancel([message[1]])
            finally:
                announce_cancel(store)

    async def _row(self) -> ReplyRow | None:
        return _current(await self._replies.table.get(self.id))

    async def _status(self) -> JobStatus:
        row = await self._row()
        if row is None:
            raise self._not_found()
        self._note_message(row)
        return status_of(row, await self._lease_of(row), self._failure_in(row))

    def _failure_in(self, row: ReplyRow) -> ReplyFailedError | None:
        """Return what a failed reply says of the failure, also if its caller gets a value."""
        if row.state != ReplyState.FAILED:
            return None
        with suppress(SerializationError):  # the status is known all the same
            return failed_error(self.id, self._replies.sealer.open(row.payload))
        return None

    async def _lease_of(self, row: ReplyRow) -> LeaseState | None:
        """Ask the queue what has become of the last start, if the status depends on that."""
        message = message_of(row)
        if row.state != ReplyState.PENDING or row.start is None or message is None:
            return None
        store = self._store_of(message[0])
        if store is None or not can_cancel(store):
            return None
        (lease,) = await store.lease_states([row.start.handle])
        return lease

    def _note_message(self, row: ReplyRow) -> None:
        message = message_of(row)
        if message is not None:
            self.message_id = message[1]

    def _not_found(self) -> ReplyNotFoundError:
        return ReplyNotFoundError(
            f"there is no reply {self.id!r}: it was read and removed, has expired, or never existed"
        )

    def __repr__(self) -> str:
        return f"<Reply {self.id}>"


def _current(row: ReplyRow | None) -> ReplyRow | None:
    """Return a row; None if the reply was settled, and the time to read it is over."""
    is_over = row is not None and row.state == ReplyState.EXPIRED and row.resolved_at is not None
    return None if is_over else row


def _deadline(timeout: float | None) -> float:
    if timeout is None:
        return math.inf
    if timeout != 0:
        check_positive("timeout", timeout)
    return time.monotonic() + timeout


LONGEST_LOOK = 3600.0
"""How long a listener is asked to wait at most; timers take no infinite times."""


def _left(deadline: float) -> float:
    return min(max(deadline - time.monotonic(), 0.0), LONGEST_LOOK)


def _checked_start(start: object) -> int:
    if type(start) is not int or start < 0:
        raise InvalidParameterError(f"start must be the index of a part, 0 or more, not {start!r}")
    return start
