"""Replies that wait on Redis."""

import time
import zlib
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.errors import MailboxConnectionError
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.reply_table import (
    MOST_READ,
    JobStart,
    PartRow,
    ReplyRow,
    ReplyState,
)

from .client import Node, ScriptClient, script_client
from .queue import milliseconds
from .redis_py import slot_of
from .resp import Head, pack
from .script_call import Block, Call, Outcome
from .scripts import EmitSettings, ReplyArguments, script

__all__ = ["RedisReplyStore", "RedisReplyTable"]

T = TypeVar("T")

REPLY, EMIT, EXPIRED = script("reply"), script("emit"), script("expired_replies")

TAGS = 16
"""Replies are spread over this many hash tags, and so over the nodes of a cluster."""
ROW = 14
"""What reply.lua says of a reply before its parts."""
LAST_PART = 10**14
"""No reply has so many parts, and the server counts no further than a little more."""
SHORTEST_BLOCK = 0.001
SOONEST_LOOK = 0.1
"""How long a waiter waits at least before it looks again."""
FIRST_BLOCK = 1.0
"""How long a waiter waits at first, when it does not know yet when its reply expires."""
LONGEST_BLOCK = 5.0
"""A waiter looks again after this many seconds, in case a failover swallowed the bell."""


class RedisReplyTable:
    """One hash for each reply; the header of reply.lua describes it."""

    keeps_objects: ClassVar[bool] = False

    def __init__(self, client: ScriptClient) -> None:
        self.steps: Steps = "awaited" if client.topology.awaited else "blocking"
        self.client = client
        self.backend_key = client.servers
        # A server that was restarted, or has taken over, lost its scripts; its node has another
        # generation of connections then.
        self._loaded: dict[Node, int] = {}

    async def create(
        self, id: str, ttl: float, owner: str | None = None, keep: float = 0.0
    ) -> bool:
        """Add a pending reply; False if the id is taken."""
        return _done(await self._call(_opening("create", id, ttl, owner or "", keep)))

    async def reopen(self, id: str, ttl: float, owner: str, keep: float = 0.0) -> bool:
        """Make a reply pending again, for a message that is replayed."""
        return _done(await self._call(reopening(id, ttl, owner, keep)))

    async def start(self, id: str, owner: str, start: JobStart) -> ReplyRow | None:
        """Record that a worker has received the message, and return the row."""
        call = _starting(id, owner, start)
        outcome = await self._call(call)
        node = self.client.pool.slots.get(_slot(call))
        if node is not None:
            self._loaded[node] = node.generation
        return _row(id, outcome)

    async def post_start(self, id: str, owner: str, start: JobStart) -> bool:
        """Record a start without waiting; each server's first is waited for, to load the script."""
        call = _starting(id, owner, start)
        node = self.client.pool.slots.get(_slot(call))
        if node is None or self._loaded.get(node) != node.generation:
            return False
        try:
            return await self.client.post(_slot(call), call)
        except MailboxConnectionError:
            return False  # `start` finds another connection, and recognises a repeat

    async def prolong(self, id: str, seconds: float, owner: str) -> bool:
        """Have a pending reply expire later."""
        return _done(await self._call(prolonging(id, seconds, owner)))

    async def resolve(
        self, id: str, payload: bytes, owner: str | None = None, *, failed: bool = False
    ) -> bool:
        """Settle the reply if it is pending, and this owner's."""
        return _done(await self._call(settling(id, payload, owner, failed)))

    async def emit(self, id: str, owner: str, handle: str, payloads: Sequence[bytes]) -> bool:
        """Add parts; raises `MailboxFullError` if the server has no memory left for them."""
        entry, _, _, parts = _keys(id)
        call = Call(Head(EMIT, entry, parts), (*EmitSettings(handle, owner, new_id()), *payloads))
        return _done(await self._call(call))

    async def parts(self, id: str, first: int, limit: int) -> Sequence[PartRow]:
        """Return parts from this index on, a mebibyte of them or one."""
        return _row_and_parts(id, await self._call(_parts_call(id, first, limit)))[1]

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
        self._emitted: int | None = None
        """How many parts there were when this last looked; None if it has not looked for parts."""

    async def get(self, wait: float) -> ReplyRow | None:
        """Return the row once it is settled or gone, or as it stands after ``wait`` seconds."""
        ends = time.monotonic() + wait
        call, longest = _call("get", self._id), FIRST_BLOCK
        while True:
            row = _row(self._id, await self._look(call, ends, longest, _rotation))
            if row is None or row.state != ReplyState.PENDING or time.monotonic() >= ends:
                return row
            longest = _longest_block(row)

    async def get_parts(self, first: int, wait: float) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        """Return the parts from this index on, as soon as there is one, or the end."""
        ends = time.monotonic() + wait
        call, longest = _parts_call(self._id, first, MOST_READ), FIRST_BLOCK
        while True:
            # The first look does not block: it leaves word that somebody waits for the end here.
            known = self._emitted
            outcome = await self._look(
                call,
                0.0 if known is None else ends,
                longest,
                partial(_read, min(first, known or 0)),
            )
            row, parts = _row_and_parts(self._id, outcome)
            self._emitted = None if row is None else row.parts
            if row is None or parts or row.state != ReplyState.PENDING or time.monotonic() >= ends:
                return row, parts
            longest = _longest_block(row)

    async def _look(
        self,
        call: Call,
        ends: float,
        longest: float,
        waiting: Callable[[Sequence[bytes], float], bytes],
    ) -> Outcome:
        """Wait at the server for a while, unless it is too late for that, then look."""
        left = min(ends - time.monotonic(), longest)
        block = None
        if left > 0:
            block = Block(waiting(call.head.keys, max(left, SHORTEST_BLOCK)), left)
        outcome = await self._client.call(_slot(call), call, block)
        if outcome.unwaited:
            await self._client.pause_unwaited(left)
        return outcome

    def close(self) -> None:
        """Nothing is left: the connection went back when the wait was over."""


def _longest_block(row: ReplyRow) -> float:
    """Return how long to wait at most: not for long after the reply expires."""
    # By this machine's clock: if the server's differs, it looks a few times too often or too late.
    return min(max(row.expires_at - time.time(), SOONEST_LOOK), LONGEST_BLOCK)


class RedisReplyStore(StoredReplies[T], Generic[T]):
    """A `ReplyStore` on Redis; with a client of ``redis.asyncio``, use the ``_async`` methods."""

    def __init__(self, client: Any) -> None:
        super().__init__(RedisReplyTable(script_client(client)))


def _tag(number: int) -> bytes:
    return b"{replies:%d}" % number


def _keys(id: str) -> tuple[bytes, bytes, bytes, bytes]:
    name = id.encode()
    tag = _tag(zlib.crc32(name) % TAGS)
    entry, bell, parts = (tag + kind + name for kind in (b":entry:", b":bell:", b":parts:"))
    return entry, bell, tag + b":expiry", parts


def is_beside(table: object, client: ScriptClient) -> bool:
    """Whether replies of a table are on the one server that a client leads to."""
    return (
        isinstance(table, RedisReplyTable)
        and table.client is client
        and not client.router.is_cluster
    )


def creation_keys(id: str) -> tuple[bytes, bytes]:
    """Return the keys that put.lua needs to make a pending reply."""
    entry, _, expiry, _ = _keys(id)
    return entry, expiry


def reopening(id: str, ttl: float, owner: str, keep: float = 0.0) -> Call:
    """Return the call that has a reply wait for a message that is replayed."""
    return _opening("reopen", id, ttl, owner, keep)


def _opening(step: str, id: str, ttl: float, owner: str, keep: float) -> Call:
    return _call(step, id, milliseconds(ttl), owner, milliseconds(keep))


def settling(id: str, payload: bytes, owner: str | None = None, failed: bool = False) -> Call:
    """Return the call that settles a pending reply."""
    return _call("fail" if failed else "resolve", id, payload, owner or "")


def prolonging(id: str, seconds: float, owner: str) -> Call:
    """Return the call that has a pending reply expire later."""
    return _call("prolong", id, milliseconds(seconds), owner)


def _starting(id: str, owner: str, start: JobStart) -> Call:
    return _call("start", id, start.handle, owner, start.deliveries, start.worker)


def _call(step: str, id: str, *value: Any) -> Call:
    return Call(Head(REPLY, *_keys(id)), ReplyArguments(step, id, 0, *value)[: 3 + len(value)])


def _parts_call(id: str, first: int, limit: int) -> Call:
    return _call("parts", id, min(first, LAST_PART), "", limit)


def _rotation(keys: Sequence[bytes], seconds: float) -> bytes:
    """Return the command that waits for the bell."""
    return pack(b"BLMOVE", keys[1], keys[1], b"LEFT", b"LEFT", f"{seconds:.3f}")


def _read(after: int, keys: Sequence[bytes], seconds: float) -> bytes:
    """Return the command that waits for a part after so many, or for the end."""
    wait = (b"XREAD", b"COUNT", 1, b"BLOCK", milliseconds(seconds))
    return pack(*wait, b"STREAMS", keys[3], f"{after}-0")


def _slot(call: Call) -> int:
    return slot_of(call.head.keys[0])


def _done(outcome: Outcome) -> bool:
    return bool(outcome.answer)


def _row(id: str, outcome: Outcome) -> ReplyRow | None:
    if not outcome.answer:
        return None
    state, payload, created, expires, resolved, owner, *more = outcome.answer[:ROW]
    ttl, keep, handle, worker, deliveries, started, series, parts = more
    start = None
    if handle:
        start = JobStart(
            _text(handle), _text(worker), _number(deliveries), _seconds(started), _number(series)
        )
    return ReplyRow(
        id,
        ReplyState(state.decode()),
        payload,
        _seconds(created),
        _seconds(expires),
        _seconds(resolved) if resolved else None,
        _text(owner) or None,
        _seconds(ttl),
        _seconds(keep),
        start,
        _number(parts),
    )


def _row_and_parts(id: str, outcome: Outcome) -> tuple[ReplyRow | None, list[PartRow]]:
    answer = outcome.answer or ()
    parts = [
        PartRow(int(answer[i]), _number(answer[i + 1]), answer[i + 2])
        for i in range(ROW, len(answer), 3)
    ]
    return _row(id, outcome), parts


# Another program may have written any bytes; the script has read the row's numbers before.
def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 0


def _seconds(value: bytes) -> float:
    return _number(value) / 1000
