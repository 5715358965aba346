"""The typed face of every backend: codec, validation, replies, waiting, sync and async, once."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from weakincentives.dispatch import Dispatcher

from . import receiving, sending
from .api import Mailbox, MailboxStats
from .declared import DeclaredTypes
from .envelope import Sealer
from .errors import InvalidParameterError, MailboxResolutionError, UnsupportedOperationError
from .flow import Flow, Step, drive, drive_async, in_executor, step_of
from .limits import Capabilities, Limits
from .message import Message, Peeked
from .polling import ForeignReplyTable
from .replies import Desk, PendingReply, ReplyChannel, StoredReplies
from .reply_table import ReplyStore, ReplyTable
from .resolver import MailboxResolver
from .store import AsyncStore, Listener, Store
from .waiting import StopSignal

__all__ = ["MailboxOptions", "StoreMailbox"]

T = TypeVar("T")
R = TypeVar("R", default=None)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class MailboxOptions:
    """What a mailbox may be told, whatever its backend."""

    body_type: Any = None
    reply_type: Any = None
    reply_resolver: MailboxResolver | None = None
    reply_store: ReplyStore[Any] | None = None
    dispatcher: Dispatcher | None = None


class StoreMailbox(Generic[T, R]):
    """A `Mailbox` over any `Store`. A backend's public class binds its store to this one."""

    def __init__(
        self,
        store: Store | AsyncStore,
        sealer_for: Callable[[Any], Sealer],
        options: MailboxOptions,
    ) -> None:
        self.store: Any = store
        self._awaited = store.steps == "awaited"
        self.limits: Limits = store.limits
        self.capabilities: Capabilities = store.capabilities
        self.dispatcher = options.dispatcher
        self.types = DeclaredTypes(type(self), options.body_type, options.reply_type, sealer_for)
        self._resolver = options.reply_resolver
        self._reply_table = _table_of(options.reply_store, store)
        self._desk: Desk | None = None
        self._listeners: set[Listener] = set()
        self._lock = threading.Lock()
        self.closed = False

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.store.name  # type: ignore[no-any-return]

    @property
    def sealer(self) -> Sealer:
        """How bodies become payloads here."""
        return self.types.sealer

    @property
    def __orig_class__(self) -> Any:
        """The alias this mailbox was made through, as typing sets it."""
        return self.types.alias

    @__orig_class__.setter
    def __orig_class__(self, alias: Any) -> None:
        self.types.told_by(alias)

    @property
    def body_type(self) -> Any:
        """The type of bodies, if the mailbox was told one."""
        return self.types.body

    def bind(self, body_type: Any, reply_type: Any) -> None:
        """Declare the types of a mailbox that was told neither; a loop does so with its own."""
        self.types.suggest(body_type, reply_type)

    def send(
        self,
        body: T,
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
        attributes: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> str:
        """Store a message and return its id."""
        if self._awaited:
            raise self.only_async("send")
        message = sending.outgoing(self, body, delay_seconds, reply_to, attributes, message_id)
        self.store.put((message,))
        return sending.sent(self, message)

    async def send_async(
        self,
        body: T,
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
        attributes: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> str:
        """Do what `send` does."""
        message = sending.outgoing(self, body, delay_seconds, reply_to, attributes, message_id)
        await self.take(self.store.put, (message,))
        return sending.sent(self, message)

    def send_batch(
        self,
        bodies: Sequence[T],
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Store several messages in one step and return their ids."""
        if self._awaited:
            raise self.only_async("send_batch")
        messages = sending.outgoing_batch(self, bodies, delay_seconds, reply_to, message_ids)
        if messages:
            self.store.put(messages)
        return [sending.sent(self, message) for message in messages]

    async def send_batch_async(
        self,
        bodies: Sequence[T],
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Do what `send_batch` does."""
        messages = sending.outgoing_batch(self, bodies, delay_seconds, reply_to, message_ids)
        if messages:
            await self.take(self.store.put, messages)
        return [sending.sent(self, message) for message in messages]

    def send_expecting_reply(
        self,
        body: T,
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        attributes: Mapping[str, str] | None = None,
    ) -> PendingReply[R]:
        """Store a message and return a handle on the one reply to it."""
        flow = sending.send_expecting_reply(self, body, reply_timeout, delay_seconds, attributes)
        return self.run("send_expecting_reply", flow)

    async def send_expecting_reply_async(
        self,
        body: T,
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        attributes: Mapping[str, str] | None = None,
    ) -> PendingReply[R]:
        """Do what `send_expecting_reply` does."""
        flow = sending.send_expecting_reply(self, body, reply_timeout, delay_seconds, attributes)
        return await self.run_async(flow)

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Lease up to ``max_messages``; wait up to ``wait_time_seconds`` for the first one."""
        if self._awaited:
            raise self.only_async("receive")
        asked = self.limits.receive(max_messages, visibility_timeout, wait_time_seconds)
        if wait_time_seconds == 0 and not self.closed:
            return receiving.glance(self, max_messages, visibility_timeout)
        return receiving.exchange(self, (), *asked)

    async def receive_async(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Do what `receive` does; cancelled, it gives back what it had leased."""
        asked = self.limits.receive(max_messages, visibility_timeout, wait_time_seconds)
        return await drive_async(receiving.exchange_flow(self, (), *asked))

    def exchange(
        self,
        done: Sequence[Message[T, R]],
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
        first: Callable[[], object] | None = None,
        stop: StopSignal | None = None,
    ) -> list[Message[T, R]]:
        """Acknowledge what is done and receive what is next, in one step.

        A message of ``done`` whose lease had ended is not finalised; the rest are. ``first`` is
        called before, as part of the same step where the backend can; ``stop`` ends the wait.
        """
        if self._awaited:
            raise self.only_async("exchange")
        asked = self.limits.receive(max_messages, visibility_timeout, wait_time_seconds)
        return receiving.exchange(self, done, *asked, first, stop)

    async def exchange_async(
        self,
        done: Sequence[Message[T, R]],
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Do what `exchange` does."""
        asked = self.limits.receive(max_messages, visibility_timeout, wait_time_seconds)
        return await drive_async(receiving.exchange_flow(self, done, *asked))

    def acknowledge_batch(self, messages: Sequence[Message[T, R]]) -> list[bool]:
        """Acknowledge several messages in one step; False where the lease had ended."""
        return self.run("acknowledge_batch", receiving.acknowledge_batch(self, messages))

    async def acknowledge_batch_async(self, messages: Sequence[Message[T, R]]) -> list[bool]:
        """Do what `acknowledge_batch` does."""
        return await self.run_async(receiving.acknowledge_batch(self, messages))

    def extend_batch(self, messages: Sequence[Message[T, R]], timeout: float) -> list[bool]:
        """Let several leases end ``timeout`` seconds from now; False where they had ended."""
        return self.run("extend_batch", receiving.extend_batch(self, messages, timeout))

    def purge(self) -> int:
        """Remove every message and return how many there were."""
        if self._awaited:
            raise self.only_async("purge")
        return self.store.purge()  # type: ignore[no-any-return]

    async def purge_async(self) -> int:
        """Do what `purge` does."""
        return await self.take(self.store.purge)  # type: ignore[no-any-return]

    def approximate_count(self) -> int:
        """Count all messages: pending, leased and delayed."""
        if self._awaited:
            raise self.only_async("approximate_count")
        return self.stats().total

    async def approximate_count_async(self) -> int:
        """Do what `approximate_count` does."""
        return (await self.stats_async()).total

    def stats(self) -> MailboxStats:
        """Count the messages by state."""
        if self._awaited:
            raise self.only_async("stats")
        return MailboxStats(*self.store.stats())

    async def stats_async(self) -> MailboxStats:
        """Do what `stats` does."""
        return MailboxStats(*await self.take(self.store.stats))

    def peek(self, limit: int = 10) -> list[Peeked[T]]:
        """Look at messages that wait to be received, without receiving them."""
        if self._awaited:
            raise self.only_async("peek")
        seen = self.store.peek(self.limits.batch(limit, "limit"))
        return [Peeked(self, one) for one in seen]

    async def peek_async(self, limit: int = 10) -> list[Peeked[T]]:
        """Do what `peek` does."""
        seen = await self.take(self.store.peek, self.limits.batch(limit, "limit"))
        return [Peeked(self, one) for one in seen]

    def close(self) -> None:
        """End sending and receiving; wake every waiter. What was received can still be settled."""
        with self._lock:
            self.closed = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener.interrupt()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{', closed' if self.closed else ''}>"

    @contextmanager
    def listening(self, stop: StopSignal | None = None) -> Iterator[Listener]:
        """Keep a listener that `close` can interrupt, and ``stop``."""
        listener: Listener = self.store.listen()
        with self._lock:
            self._listeners.add(listener)
        try:
            if stop is not None:
                stop.add(listener)
            yield listener
        finally:
            if stop is not None:
                stop.discard(listener)
            with self._lock:
                self._listeners.discard(listener)
            listener.close()

    def step(self, method: Callable[..., Any], *args: Any) -> Step:
        """Return a call of the store as a step."""
        return step_of(self.store.steps, partial(method, *args))

    def run(self, method: str, flow: Flow[V]) -> V:
        """Drive a flow in this thread."""
        if self._awaited:
            flow.close()
            raise self.only_async(method)
        return drive(flow)

    async def run_async(self, flow: Flow[V]) -> V:
        """Drive a flow in an event loop; a blocking store's flow in one hop to the executor."""
        if self.store.steps == "blocking":
            return await in_executor(partial(drive, flow))  # type: ignore[no-any-return]
        return await drive_async(flow)

    async def take(self, method: Callable[..., Any], *args: Any) -> Any:
        """Take a single step of the store in an event loop."""
        if self._awaited:
            return await method(*args)
        if self.store.steps == "inline":
            return method(*args)
        return await in_executor(partial(method, *args))

    def only_async(self, method: str) -> UnsupportedOperationError:
        """Say which twin to use on a mailbox whose client is asyncio's."""
        return UnsupportedOperationError(
            f"{self!r} has an asyncio client: await {method}_async() instead of {method}()"
        )

    def publish(self, event: Callable[..., object], *facts: object) -> None:
        """Tell the dispatcher, if anybody listens."""
        if self.dispatcher is not None:
            self.dispatcher.dispatch(event(self.name, *facts))

    def resolve(self, identifier: str) -> Mailbox[Any, None]:
        """Find the mailbox that a message wants its replies in."""
        if self._resolver is None:
            raise MailboxResolutionError(
                identifier,
                f"{self!r} cannot find the mailbox {identifier!r}: it was given no reply_resolver",
            )
        return self._resolver.resolve(identifier)

    def reply_channel(self, reply_id: str) -> ReplyChannel[R]:
        """Return the worker's end of a reply."""
        return ReplyChannel(self.desk(), reply_id)

    def desk(self) -> Desk:
        """Return where callers of this mailbox wait for replies."""
        if self._reply_table is None:
            raise UnsupportedOperationError(f"{self!r} has no reply store: pass reply_store=")
        if self._desk is None or self._desk.declared is not self.types.reply:
            self._desk = Desk(self._reply_table, self.types.reply)
        return self._desk


def _table_of(reply_store: ReplyStore[Any] | None, store: Store | AsyncStore) -> ReplyTable | None:
    if reply_store is None:
        return None
    table = (
        reply_store.table
        if isinstance(reply_store, StoredReplies)
        else ForeignReplyTable(reply_store)
    )
    if table.steps == "awaited" and store.steps != "awaited":
        raise InvalidParameterError(
            "reply_store has an asyncio client and the mailbox has not: give both the same client"
        )
    return table
