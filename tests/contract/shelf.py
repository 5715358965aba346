"""Queues in memory that behave like a server's: shared by name, kept as bytes, stepped as told."""

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

from weakincentives.clock import Clock
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox.envelope import JsonSealer, Sealer
from weakincentives.runtime.mailbox.errors import UnsupportedOperationError
from weakincentives.runtime.mailbox.limits import (
    Capabilities,
    Limits,
    check_name,
    check_positive,
)
from weakincentives.runtime.mailbox.memory import check_max_size
from weakincentives.runtime.mailbox.memory_replies import InMemoryReplyTable
from weakincentives.runtime.mailbox.memory_store import InMemoryStore
from weakincentives.runtime.mailbox.replies import StoredReplies
from weakincentives.runtime.mailbox.resolver import CompositeResolver
from weakincentives.runtime.mailbox.store import Leases, Outgoing, QueueStats, Seen
from weakincentives.runtime.mailbox.typed import MailboxOptions, StoreMailbox
from weakincentives.serde import Codec

Box = StoreMailbox[Any, Any]


class BytesReplies(InMemoryReplyTable):
    keeps_objects = False


class BlockingStore(InMemoryStore):
    steps = "blocking"


class BlockingReplies(BytesReplies):
    steps = "blocking"


class AwaitedStore:
    """An in-memory store behind coroutines, as an asyncio client has them."""

    steps = "awaited"

    def __init__(self, name: str, **options: Any) -> None:
        self.inner = InMemoryStore(name, **options)
        self.name = name
        self.bell = self.inner.bell
        self.limits, self.capabilities = self.inner.limits, self.inner.capabilities
        self.clock, self.look_interval = self.inner.clock, self.inner.look_interval

    async def put(self, messages: Sequence[Outgoing]) -> None:
        self.inner.put(messages)

    async def lease(self, count: int, seconds: float, **options: Any) -> Leases:
        return self.inner.lease(count, seconds, **options)

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        return self.inner.acknowledge(handles)

    async def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        return self.inner.release(handles, delay)

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        return self.inner.extend(handles, seconds)

    async def purge(self) -> int:
        return self.inner.purge()

    async def stats(self) -> QueueStats:
        return self.inner.stats()

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        return self.inner.peek(limit, offset)

    def listen(self) -> Any:
        return self.inner.listen()

    def together(self) -> AbstractContextManager[None]:
        return self.inner.together()

    async def close(self) -> None:
        self.inner.close()


class AwaitedReplies:
    """An in-memory reply table behind coroutines."""

    steps = "awaited"
    keeps_objects = False

    def __init__(self, clock: Clock | None) -> None:
        self.inner = BytesReplies(clock)

    async def create(self, id: str, ttl: float) -> bool:
        return self.inner.create(id, ttl)

    async def resolve(self, id: str, payload: Any) -> bool:
        return self.inner.resolve(id, payload)

    async def cancel(self, id: str) -> bool:
        return self.inner.cancel(id)

    async def get(self, id: str) -> Any:
        return self.inner.get(id)

    async def consume(self, id: str) -> Any:
        return self.inner.consume(id)

    async def delete(self, id: str) -> bool:
        return self.inner.delete(id)

    forget = delete

    async def scan_expired(self, limit: int) -> list[str]:
        return self.inner.scan_expired(limit)

    async def cleanup_expired(self, limit: int) -> int:
        return self.inner.cleanup_expired(limit)

    def listen(self, id: str) -> Any:
        return self.inner.listen(id)

    def look_again(self) -> None:
        self.inner.look_again()


class FrugalStore(InMemoryStore):
    """A store that can do, and declares, no more than a cloud queue; and serves in no order."""

    limits = Limits(900, 43_200, 20, 10, 256 * 1024, fractions=False)
    capabilities = Capabilities(
        ordered=False,
        idempotent_send=False,
        atomic_batches=False,
        fenced=False,
        nack_counts=False,
        delays=False,
        peeks=False,
        exact_counts=False,
    )

    def __init__(self, name: str, *, max_size: int | None, retention: float | None, clock: Any):
        if max_size is not None or retention is not None:
            raise UnsupportedOperationError("this queue takes neither max_size nor default_ttl")
        super().__init__(name, clock=clock)

    def put(self, messages: Sequence[Outgoing]) -> None:
        if any(message.delay for message in messages):
            raise UnsupportedOperationError("this queue delays no single message")
        super().put(messages)

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        with self._lock:
            random.shuffle(self._pending)
        return super().lease(min(count, 2), seconds, acknowledge=acknowledge, ids=ids)

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
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
        if check_name(name) not in self._stores:
            self._stores[name] = self._store_class(
                name,
                max_size=check_max_size(max_size),
                retention=None
                if default_ttl is None
                else check_positive("default_ttl", default_ttl),
                clock=self.clock,
            )
        store = self._stores[name]

        def sealer_for(declared: Any) -> Sealer:
            return JsonSealer(Codec(declared), store.limits.max_bytes)

        options = MailboxOptions(
            body_type,
            reply_type,
            reply_resolver if reply_resolver is not None else CompositeResolver({}, self),
            StoredReplies(self.table),
            dispatcher,
        )
        return StoreMailbox(store, sealer_for, options)

    def create(self, identifier: str) -> Box:
        return self.mailbox(identifier)

    def advance(self, seconds: float) -> None:
        """Let time pass; whoever waits looks again."""
        assert self.clock is not None
        self.clock.advance(seconds)
        self.table.look_again()
        for store in self._stores.values():
            store.bell.ring_all()
