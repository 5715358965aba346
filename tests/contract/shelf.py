"""Queues in memory that behave like a server's: shared by name, kept as bytes, stepped as told."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.errors import UnsupportedOperationError
from weakincentives.runtime.mailbox.limits import Limits
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.memory.replies import InMemoryReplyTable
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.queue_names import check_name
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState
from weakincentives.runtime.mailbox.seam.options import QueueOptions
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow
from weakincentives.runtime.mailbox.seam.store import (
    GivingBack,
    Leases,
    Listener,
    Outgoing,
    QueueStats,
    Seen,
)

Box = StoreMailbox[Any, Any]


class BytesReplies(InMemoryReplyTable):
    keeps_objects = False


class BlockingStore(InMemoryStore):
    steps = "blocking"


class BlockingReplies(BytesReplies):
    steps = "blocking"


class AwaitedStore:
    """An in-memory store whose steps suspend, as those of an asyncio client do."""

    steps = "awaited"

    def __init__(self, name: str, **options: Any) -> None:
        self.inner = InMemoryStore(name, **options)
        self.name = name
        self.bell = self.inner.bell
        self.limits = self.inner.limits
        self.capabilities = replace(self.inner.capabilities, lists_workers=False, pauses=False)
        self.clock, self.look_interval = self.inner.clock, self.inner.look_interval

    async def put(self, messages: Sequence[Outgoing]) -> None:
        await asyncio.sleep(0)
        await self.inner.put(messages)

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        await asyncio.sleep(0)
        return await self.inner.lease(count, seconds, acknowledge=acknowledge, ids=ids)

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        await asyncio.sleep(0)
        return await self.inner.acknowledge(handles)

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        await asyncio.sleep(0)
        return await self.inner.release(handles, delay, how)

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        await asyncio.sleep(0)
        return await self.inner.extend(handles, seconds)

    async def cancel(self, ids: Sequence[str]) -> Sequence[Any | None]:
        await asyncio.sleep(0)
        return await self.inner.cancel(ids)

    async def lease_states(self, handles: Sequence[str]) -> Sequence[LeaseState]:
        await asyncio.sleep(0)
        return await self.inner.lease_states(handles)

    async def purge(self) -> int:
        await asyncio.sleep(0)
        return await self.inner.purge()

    async def stats(self) -> QueueStats:
        await asyncio.sleep(0)
        return await self.inner.stats()

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        await asyncio.sleep(0)
        return await self.inner.peek(limit, offset)

    def listen(self, *, in_loop: bool = False) -> Listener:
        return self.inner.listen(in_loop=in_loop)

    def close(self) -> None:
        self.inner.close()


class AwaitedReplies(BytesReplies):
    """Replies that the event loop waits for."""

    steps = "awaited"

    async def get(self, id: str) -> ReplyRow | None:
        await asyncio.sleep(0)
        return await super().get(id)


class FrugalStore(InMemoryStore):
    """A store that can do, and declares, no more than a cloud queue; and serves in no order."""

    limits = Limits(900, 43_200, 20, 10, 256 * 1024, fractions=False)
    capabilities = Capabilities(
        ordered=False,
        idempotent_send=False,
        atomic_batches=False,
        fenced=False,
        nack_counts=False,
        uncounted_releases=False,
        delays=False,
        cancels=False,
        lists_workers=False,
        pauses=False,
        peeks=False,
        exact_counts=False,
    )

    def __init__(self, name: str, *, max_size: int | None, retention: float | None, clock: Any):
        if max_size is not None or retention is not None:
            raise UnsupportedOperationError("this queue takes neither max_size nor default_ttl")
        super().__init__(name, clock=clock)

    def put_now(self, messages: Sequence[Outgoing]) -> None:
        if any(message.delay for message in messages):
            raise UnsupportedOperationError("this queue delays no single message")
        super().put_now(messages)

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        with self._lock:
            random.shuffle(self._pending)
        return super().lease_now(min(count, 2), seconds, acknowledge=acknowledge, ids=ids)

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        return await super().release(handles, delay, "failed")

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        raise UnsupportedOperationError("this queue cannot be looked into")


class Shelf:
    """Opens mailboxes on queues that are found by their name."""

    def __init__(
        self,
        store_class: Any = InMemoryStore,
        table_class: Any = BytesReplies,
        clock: FakeClock | None = None,
    ) -> None:
        self.clock = clock
        self.table = table_class(clock)
        self._store_class = store_class
        self._stores: dict[str, Any] = {}

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: Any = None,
        max_size: int | None = None,
        default_ttl: float | None = None,
        dispatcher: Any = None,
    ) -> Box:
        options = QueueOptions(
            *(body_type, reply_type, reply_resolver, StoredReplies(self.table), dispatcher),
            max_size=max_size,
            default_ttl=default_ttl,
        ).with_defaults(self, StoredReplies(self.table))
        if check_name(name) not in self._stores:
            self._stores[name] = self._store_class(
                name,
                max_size=options.max_size,
                retention=options.default_ttl,
                clock=self.clock,
            )
        store = self._stores[name]
        options = replace(options, max_bytes=store.limits.max_bytes)
        return StoreMailbox(store, options.json_sealer, options)

    def create(self, identifier: str) -> Box:
        return self.mailbox(identifier)

    def advance(self, seconds: float) -> None:
        """Let time pass; whoever waits looks again."""
        assert self.clock is not None
        self.clock.advance(seconds)
        self.table.look_again()
        for store in self._stores.values():
            store.bell.ring_all()
