"""Waiting where nothing can be heard: reply stores that can only be asked again."""

import asyncio
import random
import time
from functools import partial
from typing import Any, ClassVar

from .envelope import Envelope
from .flow import Steps, in_executor
from .reply_table import ReplyEntry, ReplyListener, ReplyRow, ReplyState, ReplyStore, ReplyTable

__all__ = ["ForeignReplyTable", "PollingReplyListener", "next_poll"]

FIRST_POLL, LAST_POLL = 0.01, 1.0


def next_poll(attempt: int, jitter: float) -> float:
    """Return the pause before a poll: doubling from 10 ms to 1 s, jittered by up to a half."""
    pause = min(FIRST_POLL * 2.0 ** min(attempt, 16), LAST_POLL)
    return pause * (1 - jitter / 2)


class PollingReplyListener:
    """Asks a table again and again, ever less often."""

    def __init__(self, table: ReplyTable, id: str) -> None:
        self._table = table
        self._id = id

    def get(self, wait: float) -> ReplyRow | None:
        """Return the row once it is settled or gone, or as it stands after ``wait`` seconds."""
        deadline = time.monotonic() + wait
        attempt = 0
        while True:
            row: ReplyRow | None = self._table.get(self._id)
            pause = self._pause(row, attempt, deadline)
            if pause <= 0:
                return row
            time.sleep(pause)
            attempt += 1

    async def get_async(self, wait: float) -> ReplyRow | None:
        """Do the same in an event loop."""
        deadline = time.monotonic() + wait
        attempt = 0
        while True:
            row: ReplyRow | None = await in_executor(partial(self._table.get, self._id))
            pause = self._pause(row, attempt, deadline)
            if pause <= 0:
                return row
            await asyncio.sleep(pause)
            attempt += 1

    def close(self) -> None:
        """Nothing is held."""

    @staticmethod
    def _pause(row: ReplyRow | None, attempt: int, deadline: float) -> float:
        if row is None or row.state != ReplyState.PENDING:
            return 0.0
        return min(next_poll(attempt, random.random()), deadline - time.monotonic())


class ForeignReplyTable:
    """Somebody else's `ReplyStore`, which takes values, seen as a `ReplyTable`."""

    steps: ClassVar[Steps] = "blocking"
    keeps_objects: ClassVar[bool] = True

    def __init__(self, store: ReplyStore[Any]) -> None:
        self._store = store

    def create(self, id: str, ttl: float) -> bool:
        return self._store.create(id, ttl=ttl)

    def resolve(self, id: str, payload: Envelope) -> bool:
        return self._store.resolve(id, payload.body)

    def cancel(self, id: str) -> bool:
        return self._store.cancel(id)

    def get(self, id: str) -> ReplyRow | None:
        return _row(self._store.get(id))

    def consume(self, id: str) -> ReplyRow | None:
        return _row(self._store.consume(id))

    def delete(self, id: str) -> bool:
        return self._store.delete(id)

    forget = delete

    def scan_expired(self, limit: int) -> list[str]:
        return list(self._store.scan_expired(limit=limit))

    def cleanup_expired(self, limit: int) -> int:
        return self._store.cleanup_expired(limit=limit)

    def listen(self, id: str) -> ReplyListener:
        return PollingReplyListener(self, id)


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
