"""Waiting for a reply in DynamoDB, which can only be asked: reads, and when to make them."""

import asyncio
import random
import time
from typing import Protocol

from weakincentives.clock import Clock
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow, ReplyState
from weakincentives.runtime.mailbox.seam.step_threads import hop

__all__ = ["PolledReplies", "ReplyPolls", "next_poll"]

SHORTEST_PAUSE, LONGEST_PAUSE = 0.05, 2.0


def next_poll(age: float, jitter: float) -> float:
    """Return the pause before the next read, jittered by up to a quarter.

    It is half of the time that the job has taken so far: who waits for minutes can wait a little
    longer, and reads are paid for.
    """
    return min(max(age / 2, SHORTEST_PAUSE), LONGEST_PAUSE) * (1 - jitter / 4)


class PolledReplies(Protocol):
    """What polling needs of a table."""

    clock: Clock

    async def read(self, id: str, *, consistent: bool) -> ReplyRow | None: ...


class ReplyPolls:
    """The `ReplyListener` of a table in DynamoDB.

    A read that is not consistent costs half. It may be late, but what it says of a reply that is
    no longer pending is final; only what it does not find is asked for once more.
    """

    def __init__(self, table: PolledReplies, id: str, *, in_loop: bool) -> None:
        self._table = table
        self._id = id
        self._in_loop = in_loop

    async def get(self, wait: float) -> ReplyRow | None:
        """Return the row when it is no longer pending, or as it is after ``wait`` seconds."""
        deadline = time.monotonic() + wait
        while (remaining := deadline - time.monotonic()) > 0:
            row = await self._read(consistent=False)
            if row is None:
                break
            if row.state != ReplyState.PENDING:
                return row
            age = self._table.clock.time() - row.created_at
            await self._pause(min(next_poll(age, random.random()), remaining))
        return await self._read(consistent=True)

    def close(self) -> None:
        """Do nothing: a poll holds nothing."""

    async def _read(self, *, consistent: bool) -> ReplyRow | None:
        if self._in_loop:
            return await hop(lambda: self._table.read(self._id, consistent=consistent), self._table)
        return await self._table.read(self._id, consistent=consistent)

    async def _pause(self, seconds: float) -> None:
        if self._in_loop:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - a thread runs this
