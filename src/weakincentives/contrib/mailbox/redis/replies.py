"""Replies that wait on Redis."""

import time
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.flow import Flow, Steps, drive, drive_async
from weakincentives.runtime.mailbox.replies import StoredReplies
from weakincentives.runtime.mailbox.reply_table import ReplyRow, ReplyState

from .calls import Block, Call, Outcome
from .link import Link, link_of
from .packing import Head, pack
from .queue import milliseconds
from .scripts import script
from .topology import slot_of

__all__ = ["AsyncRedisReplyTable", "RedisReplyStore", "RedisReplyTable"]

T = TypeVar("T")

REPLY, EXPIRED = script("reply"), script("expired_replies")

TAGS = 16
"""Replies are spread over this many hash tags, and so over the nodes of a cluster."""
LONGEST_BLOCK = 5.0
"""A waiter looks again after this many seconds, in case a failover swallowed the bell."""


class RedisReplyTable:
    """One hash for each reply; the layout is told in reply.lua."""

    steps: ClassVar[Steps] = "blocking"
    keeps_objects: ClassVar[bool] = False

    def __init__(self, link: Link) -> None:
        self.link = link

    def create(self, id: str, ttl: float) -> Any:
        """Add a pending reply; False if the id is taken."""
        return self._run(_call("create", id, milliseconds(ttl)), _done)

    def resolve(self, id: str, payload: bytes) -> Any:
        """Store the value if the reply is pending."""
        return self._run(_call("resolve", id, payload), _done)

    def cancel(self, id: str) -> Any:
        """Close the reply if it is pending."""
        return self._run(_call("cancel", id), _done)

    def get(self, id: str) -> Any:
        """Look at a reply."""
        return self._run(_call("get", id), partial(_row, id))

    def consume(self, id: str) -> Any:
        """Return and remove a resolved reply, to one caller only."""
        return self._run(_call("consume", id, new_id()), partial(_row, id))

    def delete(self, id: str) -> Any:
        """Remove the reply; False if there was none."""
        return self._run(_call("delete", id), _done)

    def forget(self, id: str) -> Any:
        """Remove a reply that was read, without waiting for the server to say so."""
        call = _call("delete", id)
        return self._drive(self.link.post(_slot(call), call))

    def scan_expired(self, limit: int) -> Any:
        """Return ids of replies whose time is over."""
        return self._drive(self._scan(limit))

    def cleanup_expired(self, limit: int) -> Any:
        """Remove replies whose time is over and return how many."""
        return self._drive(self._cleanup(limit))

    def listen(self, id: str) -> "RedisReplyListener":
        """Return a new listener."""
        return RedisReplyListener(self, id)

    def await_row(self, id: str, wait: float) -> Flow[ReplyRow | None]:
        """Return the row once it is settled or gone, or as it stands after ``wait`` seconds."""
        ends = time.monotonic() + wait
        call = _call("get", id)
        bell = call.head.keys[1]
        while True:
            left = min(ends - time.monotonic(), LONGEST_BLOCK)
            block = None
            if left > 0:
                rotate = pack(b"BLMOVE", bell, bell, b"LEFT", b"LEFT", f"{max(left, 0.001):.3f}")
                block = Block(rotate, left)
            row = _row(id, (yield from self.link.call(_slot(call), call, block)))
            if row is None or row.state != ReplyState.PENDING or time.monotonic() >= ends:
                return row

    def _run(self, call: Call, read: Callable[[Outcome], Any]) -> Any:
        return read(self.link.run(_slot(call), call))

    def _drive(self, flow: Flow[Any]) -> Any:
        return drive(flow)

    def _scan(self, limit: int) -> Flow[list[str]]:
        found: list[str] = []
        for number in range(TAGS):
            if len(found) >= limit:
                break
            key = _tag(number) + b":expiry"
            call = Call(Head(EXPIRED, key), (limit - len(found),))
            outcome: Outcome = yield from self.link.call(slot_of(key), call)
            found += (id.decode() for id in outcome.answer)
        return found

    def _cleanup(self, limit: int) -> Flow[int]:
        removed = 0
        for id in (yield from self._scan(limit)):
            call = _call("reap", id)
            removed += _done((yield from self.link.call(_slot(call), call)))
        return removed


class AsyncRedisReplyTable(RedisReplyTable):
    """The same through a client of `redis.asyncio`: each method returns an awaitable."""

    steps: ClassVar[Steps] = "awaited"

    async def _run(self, call: Call, read: Callable[[Outcome], Any]) -> Any:
        return read(await drive_async(self.link.call(_slot(call), call)))

    def _drive(self, flow: Flow[Any]) -> Any:
        return drive_async(flow)


class RedisReplyListener:
    """One caller that waits for one reply, on a connection that is its own while it waits."""

    def __init__(self, table: RedisReplyTable, id: str) -> None:
        self._table = table
        self._id = id

    def get(self, wait: float) -> ReplyRow | None:
        """Wait for the bell in this thread, then look."""
        return drive(self._table.await_row(self._id, wait))

    async def get_async(self, wait: float) -> ReplyRow | None:
        """Wait for the bell in the event loop, then look."""
        return await drive_async(self._table.await_row(self._id, wait))

    def close(self) -> None:
        """Nothing is left: the connection went back when the wait was over."""


class RedisReplyStore(StoredReplies[T], Generic[T]):
    """A `ReplyStore` on Redis; with a client of ``redis.asyncio``, use the ``_async`` methods."""

    def __init__(self, client: Any) -> None:
        link = link_of(client)
        table = AsyncRedisReplyTable if link.topology.awaited else RedisReplyTable
        super().__init__(table(link))


def _tag(number: int) -> bytes:
    return b"{replies:%d}" % number


def _keys(id: str) -> tuple[bytes, bytes, bytes]:
    name = id.encode()
    tag = _tag(zlib.crc32(name) % TAGS)
    return tag + b":entry:" + name, tag + b":bell:" + name, tag + b":expiry"


def is_beside(table: object, link: Link) -> bool:
    """Whether replies of a table are on the one server that a link leads to."""
    return isinstance(table, RedisReplyTable) and table.link is link and not link.is_cluster


def creation_keys(id: str) -> tuple[bytes, bytes]:
    """Return the keys that put.lua needs to make a pending reply."""
    entry, _, expiry = _keys(id)
    return entry, expiry


def _call(step: str, id: str, *value: Any) -> Call:
    return Call(Head(REPLY, *_keys(id)), (step, id, 0, *value), repeat=2)


def _slot(call: Call) -> int:
    return slot_of(call.head.keys[0])


def _done(outcome: Outcome) -> bool:
    return bool(outcome.answer)


def _row(id: str, outcome: Outcome) -> ReplyRow | None:
    if not outcome.answer:
        return None
    state, payload, created, expires, resolved = outcome.answer
    return ReplyRow(
        id,
        ReplyState(state.decode()),
        payload,
        int(created) / 1000,
        int(expires) / 1000,
        int(resolved) / 1000 if resolved else None,
    )
