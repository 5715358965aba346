"""Replies as futures: the caller's handle, the worker's channel, and the store's typed face."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

from weakincentives.serde import Codec

from .envelope import Envelope, JsonSealer, ObjectSealer, Sealer
from .errors import (
    MailboxError,
    ReplyAlreadySentError,
    ReplyCancelledError,
    ReplyTimeoutError,
    UnsupportedOperationError,
)
from .flow import Flow, Look, Step, drive, drive_async, step_of
from .limits import Limits, check_positive
from .message import as_datetime
from .reply_table import ReplyEntry, ReplyRow, ReplyState, ReplyTable

__all__ = ["PendingReply", "Reply", "ReplyChannel", "StoredReplies"]

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
V = TypeVar("V")

NOTHING: Any = object()
DEFAULT_LIMITS = Limits()


class Reply(Protocol[T_co]):
    """The caller's handle on a reply that is to come."""

    @property
    def id(self) -> str:
        """The reply's own id."""
        ...

    def wait(self, *, timeout: float | None = None) -> T_co:
        """Block until the reply is there; None waits until the reply's own expiry."""
        ...

    async def wait_async(self, *, timeout: float | None = None) -> T_co:
        """Do what `wait` does in an event loop."""
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
        """Stop waiting for good: the work is skipped if nobody has started it."""
        ...


def sealer_for(table: ReplyTable, declared: Any) -> Sealer:
    """Return how values of the declared type are kept in a table."""
    if table.keeps_objects:
        return ObjectSealer()
    return JsonSealer(Codec(declared), DEFAULT_LIMITS.max_bytes)


class Desk:
    """A reply table and a type: what callers, channels and the public store have in common."""

    def __init__(self, table: ReplyTable, declared: Any = Any) -> None:
        self.table = table
        self.declared = declared
        self.sealer = sealer_for(table, Any if declared in (None, type(None)) else declared)

    def step(self, method: Callable[..., Any], *args: Any) -> Step:
        """Return a call of the table as a step."""
        return step_of(self.table.steps, partial(method, *args))

    def run(self, twin: str, flow: Flow[V]) -> V:
        """Drive a flow in this thread."""
        if self.table.steps == "awaited":
            flow.close()
            raise UnsupportedOperationError(
                f"this reply store has an asyncio client: await {twin}_async() instead"
            )
        return drive(flow)

    def value(self, row: ReplyRow) -> Any:
        """Read the value of a resolved row."""
        return self.sealer.body(self.sealer.open(row.payload))

    def entry(self, row: ReplyRow | None) -> ReplyEntry[Any] | None:
        """Show a row as an entry."""
        if row is None:
            return None
        return ReplyEntry(
            id=row.id,
            value=self.value(row) if row.state == ReplyState.RESOLVED else None,
            state=row.state,
            created_at=as_datetime(row.created_at),
            expires_at=as_datetime(row.expires_at),
            resolved_at=None if row.resolved_at is None else as_datetime(row.resolved_at),
        )


class ReplyChannel(Generic[T]):
    """The worker's end of a reply: takes one value."""

    def __init__(self, desk: Desk, id: str) -> None:
        self._desk = desk
        self._sent = False
        self.id = id

    def send(self, value: T) -> None:
        """Store the value; if nobody waits for it any more, nothing happens."""
        self._desk.run("send", self._send(value))

    async def send_async(self, value: T) -> None:
        """Do what `send` does."""
        await drive_async(self._send(value))

    def is_open(self) -> bool:
        """Whether somebody still waits: not replied to, cancelled or expired."""
        return self._desk.run("is_open", self.open_flow())

    async def is_open_async(self) -> bool:
        """Do what `is_open` does."""
        return await drive_async(self.open_flow())

    def open_flow(self) -> Flow[bool]:
        """Ask whether somebody still waits."""
        row: ReplyRow | None = yield self._desk.step(self._desk.table.get, self.id)
        return row is not None and row.state == ReplyState.PENDING

    def resolve_flow(self, value: T) -> Flow[bool]:
        """Store the value; False if the reply was settled before."""
        payload = self._desk.sealer.seal(Envelope(value))
        done: bool = yield self._desk.step(self._desk.table.resolve, self.id, payload)
        return done

    def _send(self, value: T) -> Flow[None]:
        if self._sent:
            raise ReplyAlreadySentError
        yield from self.resolve_flow(value)
        self._sent = True


class PendingReply(Generic[T]):
    """A `Reply` kept in a `ReplyTable`."""

    def __init__(self, desk: Desk, id: str, timeout: float) -> None:
        self.id = id
        self._desk = desk
        self._expires = time.monotonic() + timeout
        self._value: Any = NOTHING
        self._cancelled = False

    def wait(self, *, timeout: float | None = None) -> T:
        """Block until the reply is there; later calls return the same value."""
        return self._desk.run("wait", self._wait(timeout))

    async def wait_async(self, *, timeout: float | None = None) -> T:
        """Do what `wait` does in an event loop."""
        return await drive_async(self._wait(timeout))

    def poll(self) -> T | None:
        """Return the reply if it is there, else None."""
        return self._desk.run("poll", self._poll())

    async def poll_async(self) -> T | None:
        """Do what `poll` does."""
        return await drive_async(self._poll())

    def is_ready(self) -> bool:
        """Whether the reply is there."""
        return self._desk.run("is_ready", self._is_ready())

    async def is_ready_async(self) -> bool:
        """Do what `is_ready` does."""
        return await drive_async(self._is_ready())

    def is_cancelled(self) -> bool:
        """Whether the reply was cancelled."""
        return self._desk.run("is_cancelled", self._is_cancelled())

    async def is_cancelled_async(self) -> bool:
        """Do what `is_cancelled` does."""
        return await drive_async(self._is_cancelled())

    def cancel(self) -> bool:
        """Stop waiting for good; False if the reply was settled before."""
        return self._desk.run("cancel", self._cancel())

    async def cancel_async(self) -> bool:
        """Do what `cancel` does."""
        return await drive_async(self._cancel())

    def _wait(self, timeout: float | None) -> Flow[T]:
        deadline = self._expires
        if timeout is not None:
            if timeout != 0:
                check_positive("timeout", timeout)
            deadline = min(deadline, time.monotonic() + timeout)
        if self._value is not NOTHING:
            return self._value  # type: ignore[no-any-return]
        listener = self._desk.table.listen(self.id)
        try:
            while True:
                wait = max(deadline - time.monotonic(), 0.0)
                row = yield Look(partial(listener.get, wait), partial(listener.get_async, wait))
                if (yield from self._settle(row)):
                    return self._value  # type: ignore[no-any-return]
                if time.monotonic() >= deadline:
                    raise ReplyTimeoutError(
                        f"no reply to {self.id} yet; wait() can be called again"
                    )
        finally:
            listener.close()

    def _poll(self) -> Flow[T | None]:
        return self._value if (yield from self._look()) else None

    def _look(self) -> Flow[bool]:
        if self._value is not NOTHING:
            return True
        row = yield self._desk.step(self._desk.table.get, self.id)
        return (yield from self._settle(row))

    def _settle(self, row: ReplyRow | None) -> Flow[bool]:
        """Take in what the table says; True once the value is here."""
        if row is not None and row.state == ReplyState.PENDING:
            return False
        if row is not None and row.state == ReplyState.RESOLVED:
            self._value = self._desk.value(row)
            try:
                yield self._desk.step(self._desk.table.forget, self.id)
            except MailboxError:
                pass  # it expires by itself
            return True
        if self._value is not NOTHING:  # another thread waited too and has taken it
            return True
        if self._cancelled or (row is not None and row.state == ReplyState.CANCELLED):
            self._cancelled = True
            raise ReplyCancelledError(f"reply {self.id} was cancelled")
        raise ReplyTimeoutError(f"reply {self.id} has expired")

    def _is_ready(self) -> Flow[bool]:
        if self._value is not NOTHING:
            return True
        row: ReplyRow | None = yield self._desk.step(self._desk.table.get, self.id)
        return row is not None and row.state == ReplyState.RESOLVED

    def _is_cancelled(self) -> Flow[bool]:
        if not self._cancelled:
            row: ReplyRow | None = yield self._desk.step(self._desk.table.get, self.id)
            self._cancelled = row is not None and row.state == ReplyState.CANCELLED
        return self._cancelled

    def _cancel(self) -> Flow[bool]:
        if self._value is not NOTHING or self._cancelled:
            return False
        self._cancelled = yield self._desk.step(self._desk.table.cancel, self.id)
        return self._cancelled


class StoredReplies(Generic[T]):
    """The `ReplyStore` over any `ReplyTable`, with an ``_async`` twin of each method."""

    def __init__(self, table: ReplyTable, value_type: Any = Any) -> None:
        self.table = table
        self._desk = Desk(table, value_type)

    def create(self, id: str, *, ttl: float) -> bool:
        """Add a pending reply; False if the id is taken."""
        return self._call("create", id, check_positive("ttl", ttl))  # type: ignore[no-any-return]

    async def create_async(self, id: str, *, ttl: float) -> bool:
        """Do what `create` does."""
        return await self._call_async("create", id, check_positive("ttl", ttl))  # type: ignore[no-any-return]

    def resolve(self, id: str, value: T) -> bool:
        """Store the value; False if the reply is not pending any more."""
        return self._call("resolve", id, self._desk.sealer.seal(Envelope(value)))  # type: ignore[no-any-return]

    async def resolve_async(self, id: str, value: T) -> bool:
        """Do what `resolve` does."""
        payload = self._desk.sealer.seal(Envelope(value))
        return await self._call_async("resolve", id, payload)  # type: ignore[no-any-return]

    def cancel(self, id: str) -> bool:
        """Close the reply; False if it is not pending any more."""
        return self._call("cancel", id)  # type: ignore[no-any-return]

    async def cancel_async(self, id: str) -> bool:
        """Do what `cancel` does."""
        return await self._call_async("cancel", id)  # type: ignore[no-any-return]

    def get(self, id: str) -> ReplyEntry[T] | None:
        """Look at a reply."""
        return self._desk.entry(self._call("get", id))

    async def get_async(self, id: str) -> ReplyEntry[T] | None:
        """Do what `get` does."""
        return self._desk.entry(await self._call_async("get", id))

    def consume(self, id: str) -> ReplyEntry[T] | None:
        """Take a resolved reply, to one caller only."""
        return self._desk.entry(self._call("consume", id))

    async def consume_async(self, id: str) -> ReplyEntry[T] | None:
        """Do what `consume` does."""
        return self._desk.entry(await self._call_async("consume", id))

    def delete(self, id: str) -> bool:
        """Remove a reply; False if there was none."""
        return self._call("delete", id)  # type: ignore[no-any-return]

    async def delete_async(self, id: str) -> bool:
        """Do what `delete` does."""
        return await self._call_async("delete", id)  # type: ignore[no-any-return]

    def scan_expired(self, *, limit: int = 100) -> Sequence[str]:
        """Return ids of replies whose time is over."""
        return self._call("scan_expired", DEFAULT_LIMITS.batch(limit, "limit"))  # type: ignore[no-any-return]

    async def scan_expired_async(self, *, limit: int = 100) -> Sequence[str]:
        """Do what `scan_expired` does."""
        return await self._call_async("scan_expired", DEFAULT_LIMITS.batch(limit, "limit"))  # type: ignore[no-any-return]

    def cleanup_expired(self, *, limit: int = 100) -> int:
        """Remove replies whose time is over and return how many."""
        return self._call("cleanup_expired", DEFAULT_LIMITS.batch(limit, "limit"))  # type: ignore[no-any-return]

    async def cleanup_expired_async(self, *, limit: int = 100) -> int:
        """Do what `cleanup_expired` does."""
        return await self._call_async("cleanup_expired", DEFAULT_LIMITS.batch(limit, "limit"))  # type: ignore[no-any-return]

    def _call(self, method: str, *args: Any) -> Any:
        return self._desk.run(method, self._one(method, *args))

    async def _call_async(self, method: str, *args: Any) -> Any:
        return await drive_async(self._one(method, *args))

    def _one(self, method: str, *args: Any) -> Flow[Any]:
        return (yield self._desk.step(getattr(self.table, method), *args))
