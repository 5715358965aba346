"""Waiting for a reply in DynamoDB, which can only be asked: reads, and when to make them."""

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from weakincentives.clock import Clock
from weakincentives.runtime.mailbox.seam.driver import Make
from weakincentives.runtime.mailbox.seam.reply_table import (
    MOST_READ,
    PartRow,
    ReplyRow,
    ReplyState,
)
from weakincentives.runtime.mailbox.seam.step_threads import hop

__all__ = ["PolledReplies", "ReplyPolls", "next_poll"]

V = TypeVar("V")

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

    async def parts(self, id: str, first: int, limit: int) -> Sequence[PartRow]: ...


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
        return await self._poll(wait, lambda row: False)

    async def get_parts(self, first: int, wait: float) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        """Return the parts from index ``first`` on, as soon as there is one."""
        row = await self._poll(wait, lambda row: row.parts > first)
        if row is None or row.parts <= first:
            return row, ()
        return row, await self._step(lambda: self._table.parts(self._id, first, MOST_READ))

    async def _poll(self, wait: float, is_enough: Callable[[ReplyRow], bool]) -> ReplyRow | None:
        began = time.monotonic()
        deadline = began + wait
        while (remaining := deadline - time.monotonic()) > 0:
            row = await self._read(consistent=False)
            if row is None:
                break
            if row.state != ReplyState.PENDING or is_enough(row):
                return row
            # By the wall clock, which may be behind that of the sender.
            age = max(self._table.clock.time() - row.created_at, time.monotonic() - began)
            await self._pause(min(next_poll(age, random.random()), remaining))
        return await self._read(consistent=True)

    def close(self) -> None:
        """Do nothing: a poll holds nothing."""

    async def _read(self, *, consistent: bool) -> ReplyRow | None:
        return await self._step(lambda: self._table.read(self._id, consistent=consistent))

    async def _step(self, make: Make[V]) -> V:
        return await (hop(make, self._table) if self._in_loop else make())

    async def _pause(self, seconds: float) -> None:
        if self._in_loop:
            await asyncio.sleep(seconds)
        else:
            time.sleep(seconds)  # noqa: ASYNC251 - a thread runs this
