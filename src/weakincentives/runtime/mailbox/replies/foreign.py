"""Adapters for reply stores of users, and for tables that can only be polled."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from weakincentives.runtime.mailbox.envelope import Envelope
from weakincentives.runtime.mailbox.seam.driver import Make, Steps
from weakincentives.runtime.mailbox.seam.reply_table import (
    MOST_READ,
    JobStart,
    PartRow,
    ReplyEntry,
    ReplyListener,
    ReplyRow,
    ReplyState,
    ReplyStore,
    ReplyTable,
)
from weakincentives.runtime.mailbox.seam.step_threads import hop

from .failure import has_value

__all__ = ["ForeignReplyTable", "PollingReplyListener", "ThreadedReplyTable", "next_poll"]

V = TypeVar("V")

FIRST_POLL, LAST_POLL = 0.01, 1.0


def next_poll(attempt: int, jitter: float) -> float:
    """Return the pause before a poll: doubling from 10 ms to 1 s, jittered by up to a half."""
    pause = min(FIRST_POLL * 2.0 ** min(attempt, 16), LAST_POLL)
    return pause * (1 - jitter / 2)


class PollingReplyListener:
    """Polls a reply table, with growing pauses."""

    def __init__(self, table: ReplyTable, id: str, *, in_loop: bool) -> None:
        self._table = table
        self._id = id
        self._in_loop = in_loop

    async def get(self, wait: float) -> ReplyRow | None:
        """Return the row when it is no longer pending, or as it is after ``wait`` seconds."""
        return await self._poll(wait, lambda row: False)

    async def get_parts(self, first: int, wait: float) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        """Return the parts from index ``first`` on, as soon as there is one."""
        row = await self._poll(wait, lambda row: row.parts > first)
        if row is None or row.parts <= first:
            return row, ()
        return row, await self._step(lambda: self._table.parts(self._id, first, MOST_READ))

    async def _poll(self, wait: float, is_enough: Callable[[ReplyRow], bool]) -> ReplyRow | None:
        deadline = time.monotonic() + wait
        attempt = 0
        while True:
            row = await self._step(lambda: self._table.get(self._id))
            if row is None or row.state != ReplyState.PENDING or is_enough(row):
                return row
            pause = min(next_poll(attempt, random.random()), deadline - time.monotonic())
            if pause <= 0:
                return row
            if self._in_loop:
                await asyncio.sleep(pause)
            else:
                time.sleep(pause)  # noqa: ASYNC251 - a thread runs this
            attempt += 1

    async def _step(self, make: Make[V]) -> V:
        if self._in_loop and self._table.steps == "blocking":
            return await hop(make, self._table)
        return await make()

    def close(self) -> None:
        """Do nothing: a poll holds nothing."""


class ForeignReplyTable:
    """Adapts a `ReplyStore` that a user wrote to a `ReplyTable`.

    It records neither owners nor starts, and keeps no parts: any worker that knows a reply's id may
    answer. A failure that has no value cancels the reply, for such a store has no other way to tell
    the caller.
    """

    steps: ClassVar[Steps] = "blocking"
    keeps_objects: ClassVar[bool] = True

    def __init__(self, store: ReplyStore[Any]) -> None:
        self.backend_key = self._store = store

    async def create(
        self, id: str, ttl: float, owner: str | None = None, keep: float = 0.0
    ) -> bool:
        return self._store.create(id, ttl=ttl)

    async def reopen(self, id: str, ttl: float, owner: str, keep: float = 0.0) -> bool:
        entry = self._store.get(id)
        if entry is None:
            return self._store.create(id, ttl=ttl)
        return ReplyState(entry.state) == ReplyState.PENDING

    async def start(self, id: str, owner: str, start: JobStart) -> ReplyRow | None:
        return await self.get(id)

    async def prolong(self, id: str, seconds: float, owner: str) -> bool:
        return False  # such a store has no way to do so

    async def resolve(
        self, id: str, payload: Envelope, owner: str | None = None, *, failed: bool = False
    ) -> bool:
        if failed and not has_value(payload):
            return self._store.cancel(id)
        return self._store.resolve(id, payload.body)

    async def emit(self, id: str, owner: str, handle: str, payloads: Sequence[Any]) -> bool:
        return False

    async def parts(self, id: str, first: int, limit: int) -> Sequence[PartRow]:
        return ()

    async def cancel(self, id: str) -> bool:
        return self._store.cancel(id)

    async def get(self, id: str) -> ReplyRow | None:
        return _row(self._store.get(id))

    async def consume(self, id: str) -> ReplyRow | None:
        return _row(self._store.consume(id))

    async def delete(self, id: str) -> bool:
        return self._store.delete(id)

    forget = delete

    async def scan_expired(self, limit: int) -> list[str]:
        return list(self._store.scan_expired(limit=limit))

    async def cleanup_expired(self, limit: int) -> int:
        return self._store.cleanup_expired(limit=limit)

    def listen(self, id: str, *, in_loop: bool = False) -> ReplyListener:
        return PollingReplyListener(self, id, in_loop=in_loop)


class ThreadedReplyTable:
    """Makes a blocking reply table awaitable: each step runs in a thread of its backend."""

    steps: ClassVar[Steps] = "awaited"

    def __init__(self, table: ReplyTable) -> None:
        self._table = table
        self.keeps_objects = table.keeps_objects
        self.listen = table.listen

    async def create(
        self, id: str, ttl: float, owner: str | None = None, keep: float = 0.0
    ) -> bool:
        return await hop(lambda: self._table.create(id, ttl, owner, keep), self._table)

    async def reopen(self, id: str, ttl: float, owner: str, keep: float = 0.0) -> bool:
        return await hop(lambda: self._table.reopen(id, ttl, owner, keep), self._table)

    async def start(self, id: str, owner: str, start: JobStart) -> ReplyRow | None:
        return await hop(lambda: self._table.start(id, owner, start), self._table)

    async def prolong(self, id: str, seconds: float, owner: str) -> bool:
        return await hop(lambda: self._table.prolong(id, seconds, owner), self._table)

    async def resolve(
        self, id: str, payload: Any, owner: str | None = None, *, failed: bool = False
    ) -> bool:
        return await hop(
            lambda: self._table.resolve(id, payload, owner, failed=failed), self._table
        )

    async def emit(self, id: str, owner: str, handle: str, payloads: Sequence[Any]) -> bool:
        return await hop(lambda: self._table.emit(id, owner, handle, payloads), self._table)

    async def parts(self, id: str, first: int, limit: int) -> Sequence[PartRow]:
        return await hop(lambda: self._table.parts(id, first, limit), self._table)

    async def cancel(self, id: str) -> bool:
        return await hop(lambda: self._table.cancel(id), self._table)

    async def get(self, id: str) -> ReplyRow | None:
        return await hop(lambda: self._table.get(id), self._table)

    async def consume(self, id: str) -> ReplyRow | None:
        return await hop(lambda: self._table.consume(id), self._table)

    async def delete(self, id: str) -> bool:
        return await hop(lambda: self._table.delete(id), self._table)

    async def forget(self, id: str) -> object:
        return await hop(lambda: self._table.forget(id), self._table)

    async def scan_expired(self, limit: int) -> Sequence[str]:
        return await hop(lambda: self._table.scan_expired(limit), self._table)

    async def cleanup_expired(self, limit: int) -> int:
        return await hop(lambda: self._table.cleanup_expired(limit), self._table)


def _row(entry: ReplyEntry[Any] | None) -> ReplyRow | None:
    if entry is None:
        return None
    return ReplyRow(
        entry.id,
        ReplyState(entry.state),
        Envelope(entry.value),
        entry.created_at.timestamp(),
        entry.expires_at.timestamp(),
        None if entry.resolved_at is None else entry.resolved_at.timestamp(),
    )
