"""Replies that wait on Redis."""

import time
import zlib
from collections.abc import Coroutine
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow, ReplyState

from .client import ScriptClient, script_client
from .queue import milliseconds
from .redis_py import slot_of
from .resp import Head, pack
from .script_call import Block, Call, Outcome
from .scripts import ReplyArguments, script

__all__ = ["RedisReplyStore", "RedisReplyTable"]

T = TypeVar("T")

REPLY, EXPIRED = script("reply"), script("expired_replies")

TAGS = 16
"""Replies are spread over this many hash tags, and so over the nodes of a cluster."""
LONGEST_BLOCK = 5.0
"""A waiter looks again after this many seconds, in case a failover swallowed the bell."""


class RedisReplyTable:
    """One hash for each reply; the header of reply.lua describes it."""

    keeps_objects: ClassVar[bool] = False

    def __init__(self, client: ScriptClient) -> None:
        self.steps: Steps = "awaited" if client.topology.awaited else "blocking"
        self.client = client
        self.backend_key = client.servers

    async def create(self, id: str, ttl: float, owner: str | None = None) -> bool:
        """Add a pending reply; False if the id is taken."""
        return _done(await self._call(_call("create", id, milliseconds(ttl), owner or "")))

    async def resolve(self, id: str, payload: bytes, owner: str | None = None) -> bool:
        """Store the value if the reply is pending, and this owner's."""
        return _done(await self._call(_call("resolve", id, payload, owner or "")))

    async def cancel(self, id: str) -> bool:
        """Close the reply if it is pending."""
        return _done(await self._call(_call("cancel", id)))

    async def get(self, id: str) -> ReplyRow | None:
        """Look at a reply."""
        return _row(id, await self._call(_call("get", id)))

    async def consume(self, id: str) -> ReplyRow | None:
        """Return and remove a resolved reply, to one caller only."""
        return _row(id, await self._call(_call("consume", id, new_id())))

    async def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        return _done(await self._call(_call("delete", id)))

    async def forget(self, id: str) -> None:
        """Remove a reply that was read, without waiting for the server to say so."""
        call = _call("delete", id)
        if not await self.client.post(_slot(call), call):
            await self._call(call)

    async def scan_expired(self, limit: int) -> list[str]:
        """Return ids of replies whose time is over."""
        found: list[str] = []
        for number in range(TAGS):
            if len(found) >= limit:
                break
            key = _tag(number) + b":expiry"
            call = Call(Head(EXPIRED, key), (limit - len(found),))
            outcome = await self.client.call(slot_of(key), call)
            found += (id.decode() for id in outcome.answer)
        return found

    async def cleanup_expired(self, limit: int) -> int:
        """Remove replies whose time is over and return how many."""
        removed = 0
        for id in await self.scan_expired(limit):
            removed += _done(await self._call(_call("reap", id)))
        return removed

    def listen(self, id: str, *, in_loop: bool = False) -> "RedisReplyListener":
        """Return a new listener."""
        return RedisReplyListener(self.client.in_loop() if in_loop else self.client, id)

    def _call(self, call: Call) -> Coroutine[Any, Any, Outcome]:
        return self.client.call(_slot(call), call)


class RedisReplyListener:
    """One caller that waits for one reply, on a connection that is its own while it waits."""

    def __init__(self, client: ScriptClient, id: str) -> None:
        self._client = client
        self._id = id

    async def get(self, wait: float) -> ReplyRow | None:
        """Return the row once it is settled or gone, or as it stands after ``wait`` seconds."""
        ends = time.monotonic() + wait
        call = _call("get", self._id)
        bell = call.head.keys[1]
        while True:
            left = min(ends - time.monotonic(), LONGEST_BLOCK)
            block = None
            if left > 0:
                rotate = pack(b"BLMOVE", bell, bell, b"LEFT", b"LEFT", f"{max(left, 0.001):.3f}")
                block = Block(rotate, left)
            outcome = await self._client.call(_slot(call), call, block)
            row = _row(self._id, outcome)
            if row is None or row.state != ReplyState.PENDING or time.monotonic() >= ends:
                return row
            if outcome.unwaited:
                await self._client.pause_unwaited(left)

    def close(self) -> None:
        """Nothing is left: the connection went back when the wait was over."""


class RedisReplyStore(StoredReplies[T], Generic[T]):
    """A `ReplyStore` on Redis; with a client of ``redis.asyncio``, use the ``_async`` methods."""

    def __init__(self, client: Any) -> None:
        super().__init__(RedisReplyTable(script_client(client)))


def _tag(number: int) -> bytes:
    return b"{replies:%d}" % number


def _keys(id: str) -> tuple[bytes, bytes, bytes]:
    name = id.encode()
    tag = _tag(zlib.crc32(name) % TAGS)
    return tag + b":entry:" + name, tag + b":bell:" + name, tag + b":expiry"


def is_beside(table: object, client: ScriptClient) -> bool:
    """Whether replies of a table are on the one server that a client leads to."""
    return (
        isinstance(table, RedisReplyTable)
        and table.client is client
        and not client.router.is_cluster
    )


def creation_keys(id: str) -> tuple[bytes, bytes]:
    """Return the keys that put.lua needs to make a pending reply."""
    entry, _, expiry = _keys(id)
    return entry, expiry


def _call(step: str, id: str, *value: Any) -> Call:
    return Call(Head(REPLY, *_keys(id)), ReplyArguments(step, id, 0, *value)[: 3 + len(value)])


def _slot(call: Call) -> int:
    return slot_of(call.head.keys[0])


def _done(outcome: Outcome) -> bool:
    return bool(outcome.answer)


def _row(id: str, outcome: Outcome) -> ReplyRow | None:
    if not outcome.answer:
        return None
    state, payload, created, expires, resolved, owner = outcome.answer
    return ReplyRow(
        id,
        ReplyState(state.decode()),
        payload,
        int(created) / 1000,
        int(expires) / 1000,
        int(resolved) / 1000 if resolved else None,
        owner.decode() or None,
    )
