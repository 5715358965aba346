"""The typed face of every backend: codec, validation, replies, waiting, sync and async, once."""

import asyncio
import logging
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic

from typing_extensions import Self, TypeVar

from weakincentives.dispatch import Dispatcher
from weakincentives.ids import new_id

from .api import Mailbox, MailboxStats
from .declared import DeclaredTypes
from .envelope import Envelope, Sealer
from .errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxResolutionError,
    ReceiptHandleExpiredError,
    SerializationError,
    UnsupportedOperationError,
)
from .events import LeasesExpired, MessageReceived, MessagesDropped, MessageSent
from .flow import Flow, Look, Step, drive, drive_async, in_executor, step_of
from .limits import Capabilities, Limits, check_positive
from .message import Message, Peeked
from .polling import ForeignReplyTable
from .replies import Desk, PendingReply, ReplyChannel, StoredReplies
from .reply_table import ReplyStore, ReplyTable
from .resolver import MailboxResolver
from .store import AsyncStore, Leases, Listener, Outgoing, QueueStats, Seen, Store
from .waiting import StopSignal, next_pause

__all__ = ["MailboxOptions", "StoreMailbox"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R", default=None)
V = TypeVar("V")

MESSAGE_ID = re.compile(r"[A-Za-z0-9_.:=-]{1,128}", re.ASCII)


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
        self.limits: Limits = store.limits
        self.capabilities: Capabilities = store.capabilities
        self.dispatcher = options.dispatcher
        self._types = DeclaredTypes(type(self), options.body_type, options.reply_type, sealer_for)
        self._resolver = options.reply_resolver
        self._reply_table = _table_of(options.reply_store, store)
        self._listeners: set[Listener] = set()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.store.name  # type: ignore[no-any-return]

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    @property
    def sealer(self) -> Sealer:
        """How bodies become payloads here."""
        return self._types.sealer

    @property
    def __orig_class__(self) -> Any:
        """The alias this mailbox was made through, as typing sets it."""
        return self._types.alias

    @__orig_class__.setter
    def __orig_class__(self, alias: Any) -> None:
        self._types.told_by(alias)

    @property
    def body_type(self) -> Any:
        """The type of bodies, if the mailbox was told one."""
        return self._types.body

    def bind(self, body_type: Any, reply_type: Any) -> None:
        """Declare the types of a mailbox that was told neither; a loop does so with its own."""
        self._types.suggest(body_type, reply_type)

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
        return self.run("send", self._send(body, delay_seconds, reply_to, attributes, message_id))

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
        flow = self._send(body, delay_seconds, reply_to, attributes, message_id)
        return await self.run_async(flow)

    def send_batch(
        self,
        bodies: Sequence[T],
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
    ) -> list[str]:
        """Store several messages in one step and return their ids."""
        return self.run("send_batch", self._send_batch(bodies, delay_seconds, reply_to))

    async def send_batch_async(
        self,
        bodies: Sequence[T],
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
    ) -> list[str]:
        """Do what `send_batch` does."""
        return await self.run_async(self._send_batch(bodies, delay_seconds, reply_to))

    def send_expecting_reply(
        self,
        body: T,
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        attributes: Mapping[str, str] | None = None,
    ) -> PendingReply[R]:
        """Store a message and return a handle on the one reply to it."""
        flow = self._send_expecting_reply(body, reply_timeout, delay_seconds, attributes)
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
        flow = self._send_expecting_reply(body, reply_timeout, delay_seconds, attributes)
        return await self.run_async(flow)

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Lease up to ``max_messages``; wait up to ``wait_time_seconds`` for the first one."""
        flow = self._receive((), max_messages, visibility_timeout, wait_time_seconds)
        return self.run("receive", flow)

    async def receive_async(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Do what `receive` does; cancelled, it gives back what it had leased."""
        flow = self._receive((), max_messages, visibility_timeout, wait_time_seconds)
        return await drive_async(flow)

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
        flow = self._receive(done, max_messages, visibility_timeout, wait_time_seconds, first, stop)
        return self.run("exchange", flow)

    async def exchange_async(
        self,
        done: Sequence[Message[T, R]],
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Do what `exchange` does."""
        flow = self._receive(done, max_messages, visibility_timeout, wait_time_seconds)
        return await drive_async(flow)

    def acknowledge_batch(self, messages: Sequence[Message[T, R]]) -> list[bool]:
        """Acknowledge several messages in one step; False where the lease had ended."""
        return self.run("acknowledge_batch", self._acknowledge_batch(messages))

    async def acknowledge_batch_async(self, messages: Sequence[Message[T, R]]) -> list[bool]:
        """Do what `acknowledge_batch` does."""
        return await self.run_async(self._acknowledge_batch(messages))

    def extend_batch(self, messages: Sequence[Message[T, R]], timeout: float) -> list[bool]:
        """Let several leases end ``timeout`` seconds from now; False where they had ended."""
        return self.run("extend_batch", self._extend_batch(messages, timeout))

    def purge(self) -> int:
        """Remove every message and return how many there were."""
        return self.run("purge", self._call(self.store.purge))  # type: ignore[no-any-return]

    async def purge_async(self) -> int:
        """Do what `purge` does."""
        return await self.run_async(self._call(self.store.purge))  # type: ignore[no-any-return]

    def approximate_count(self) -> int:
        """Count all messages: pending, leased and delayed."""
        return self.run("approximate_count", self._stats()).total

    async def approximate_count_async(self) -> int:
        """Do what `approximate_count` does."""
        return (await self.run_async(self._stats())).total

    def stats(self) -> MailboxStats:
        """Count the messages by state."""
        return self.run("stats", self._stats())

    async def stats_async(self) -> MailboxStats:
        """Do what `stats` does."""
        return await self.run_async(self._stats())

    def peek(self, limit: int = 10) -> list[Peeked[T]]:
        """Look at messages that wait to be received, without receiving them."""
        return self.run("peek", self._peek(limit))

    async def peek_async(self, limit: int = 10) -> list[Peeked[T]]:
        """Do what `peek` does."""
        return await self.run_async(self._peek(limit))

    def close(self) -> None:
        """End sending and receiving; wake every waiter. What was received can still be settled."""
        with self._lock:
            self._closed = True
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
        return f"<{type(self).__name__} {self.name!r}{', closed' if self._closed else ''}>"

    def step(self, method: Callable[..., Any], *args: Any) -> Step:
        """Return a call of the store as a step."""
        return step_of(self.store.steps, partial(method, *args))

    def run(self, method: str, flow: Flow[V]) -> V:
        """Drive a flow in this thread."""
        if self.store.steps == "awaited":
            flow.close()
            raise UnsupportedOperationError(
                f"{self!r} has an asyncio client: await {method}_async() instead of {method}()"
            )
        return drive(flow)

    async def run_async(self, flow: Flow[V]) -> V:
        """Drive a flow in an event loop; a blocking store's flow in one hop to the executor."""
        if self.store.steps == "blocking":
            return await in_executor(partial(drive, flow))  # type: ignore[no-any-return]
        return await drive_async(flow)

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
        return ReplyChannel(self._desk(), reply_id)

    def _desk(self) -> Desk:
        if self._reply_table is None:
            raise UnsupportedOperationError(f"{self!r} has no reply store: pass reply_store=")
        return Desk(self._reply_table, self._types.reply)

    def _outgoing(
        self,
        body: T,
        delay_seconds: float,
        reply_to: Mailbox[R, None] | None,
        attributes: Mapping[str, str] | None = None,
        message_id: str | None = None,
        reply_id: str | None = None,
    ) -> Outgoing:
        """Check everything and seal the message; nothing has happened if this raises."""
        if self._closed:
            raise MailboxClosedError(f"{self!r}: nothing was sent")
        delay = self.limits.delay(delay_seconds)
        if reply_to is not None and not isinstance(getattr(reply_to, "name", None), str):
            raise InvalidParameterError(f"reply_to must be a mailbox, not {reply_to!r:.100}")
        if attributes is not None:
            attributes = _checked_attributes(attributes)
        if message_id is not None and (
            not isinstance(message_id, str) or not MESSAGE_ID.fullmatch(message_id)
        ):
            raise InvalidParameterError(
                f"message_id must be 1 to 128 characters of A-Z a-z 0-9 _ . : = -, "
                f"not {message_id!r:.150}"
            )
        envelope = Envelope(body, reply_to=reply_to, reply_id=reply_id, attributes=attributes)
        payload = self._types.sealer.seal(envelope)
        return Outgoing(message_id or new_id(), payload, delay, message_id is not None)

    def _send(
        self,
        body: T,
        delay_seconds: float,
        reply_to: Mailbox[R, None] | None,
        attributes: Mapping[str, str] | None,
        message_id: str | None,
    ) -> Flow[str]:
        message = self._outgoing(body, delay_seconds, reply_to, attributes, message_id)
        yield self.step(self.store.put, (message,))
        self.publish(MessageSent, message.id)
        return message.id

    def _send_batch(
        self, bodies: Sequence[T], delay_seconds: float, reply_to: Mailbox[R, None] | None
    ) -> Flow[list[str]]:
        if isinstance(bodies, str | bytes) or not isinstance(bodies, Sequence):
            raise InvalidParameterError(f"bodies must be a list, not {type(bodies).__name__}")
        if self._closed:
            raise MailboxClosedError(f"{self!r}: nothing was sent")
        if not bodies:
            return []
        self.limits.batch(len(bodies), "len(bodies)")
        messages = [self._outgoing(body, delay_seconds, reply_to) for body in bodies]
        yield self.step(self.store.put, messages)
        for message in messages:
            self.publish(MessageSent, message.id)
        return [message.id for message in messages]

    def _send_expecting_reply(
        self,
        body: T,
        reply_timeout: float,
        delay_seconds: float,
        attributes: Mapping[str, str] | None,
    ) -> Flow[PendingReply[R]]:
        check_positive("reply_timeout", reply_timeout)
        desk, reply_id = self._desk(), new_id()
        message = self._outgoing(body, delay_seconds, None, attributes, reply_id=reply_id)
        reply: PendingReply[R] = PendingReply(desk, reply_id, reply_timeout)
        with self.store.together():
            yield desk.step(desk.table.create, reply_id, reply_timeout)
            try:
                yield self.step(self.store.put, (message,))
            except BaseException:
                yield desk.step(desk.table.delete, reply_id)
                raise
        self.publish(MessageSent, message.id)
        return reply

    def _receive(
        self,
        done: Sequence[Message[T, R]],
        max_messages: int,
        visibility_timeout: float,
        wait_time_seconds: float,
        first: Callable[[], object] | None = None,
        stop: StopSignal | None = None,
    ) -> Flow[list[Message[T, R]]]:
        limits = self.limits
        count = limits.batch(max_messages)
        seconds = limits.visibility(visibility_timeout)
        wait = limits.wait(wait_time_seconds)
        if self._closed:
            if first is not None:
                first()
            if done:
                yield from self._acknowledge_batch(done)
            return []
        store = self.store
        deadline = time.monotonic() + wait if wait else 0.0
        started = store.clock.monotonic()
        if done:
            handles = [message.receipt_handle for message in done]
            look = partial(store.lease, count, seconds, acknowledge=handles)
        else:
            look = partial(store.lease, count, seconds)
        with nullcontext() if first is None else store.together():
            if first is not None:
                first()
            leases: Leases = yield self._leasing(look, None)
        if done:
            for message, ok in zip(done, leases.acknowledged, strict=True):
                _settled(message, ok)
        if leases.messages or not wait:
            return self._messages(leases, started + seconds)
        return (yield from self._listen(count, seconds, deadline, leases, stop))

    def _listen(
        self,
        count: int,
        seconds: float,
        deadline: float,
        leases: Leases,
        stop: StopSignal | None,
    ) -> Flow[list[Message[T, R]]]:
        listener: Listener = self.store.listen()
        with self._lock:
            self._listeners.add(listener)
        try:
            if stop is not None:
                stop.add(listener)
            while not self._closed and not (stop is not None and stop.is_set()):
                remaining = deadline - time.monotonic()
                pause = next_pause(remaining, self.store.look_interval, leases.next_due)
                started = self.store.clock.monotonic()
                leases = yield self._leasing(
                    partial(listener.lease, count, seconds, pause),
                    listener,
                    partial(listener.lease_async, count, seconds, pause),
                )
                if leases.messages:
                    return self._messages(leases, started + seconds)
                if remaining <= 0:
                    break
            return []
        finally:
            if stop is not None:
                stop.discard(listener)
            with self._lock:
                self._listeners.discard(listener)
            listener.close()

    def _leasing(
        self,
        look: Callable[[], Any],
        listener: Listener | None,
        look_async: Callable[[], Awaitable[Leases]] | None = None,
    ) -> Step:
        """Return a look as a step that gives back what it leased if it is cancelled."""
        if look_async is None:
            step = self.step(look)
            if not isinstance(step, Look):
                return step
            look_async = step.awaited
        return Look(look, partial(self._cancellable, look_async, listener))

    async def _cancellable(
        self, look: Callable[[], Awaitable[Leases]], listener: Listener | None
    ) -> Leases:
        task = asyncio.ensure_future(look())
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if listener is not None:
                listener.interrupt()
            leases = await task
            if leases.messages:
                handles = [leased.handle for leased in leases.messages]
                await drive_async(self._call(self.store.release, handles, 0.0))
            raise

    def _messages(self, leases: Leases, deadline: float) -> list[Message[T, R]]:
        if leases.expired or leases.dropped:
            self._report(leases)
        sealer = self._types.sealer
        messages: list[Message[T, R]] = []
        for leased in leases.messages:
            try:
                envelope: Envelope | SerializationError = sealer.open(leased.payload)
            except SerializationError as error:
                envelope = error
            messages.append(Message(self, leased, envelope, deadline))
            if self.dispatcher is not None:
                self.publish(MessageReceived, leased.id, leased.delivery_count)
        return messages

    def _report(self, leases: Leases) -> None:
        if leases.expired:
            self.publish(LeasesExpired, leases.expired)
        if leases.dropped:
            logger.warning("%r: dropped %d messages older than it keeps them", self, leases.dropped)
            self.publish(MessagesDropped, leases.dropped)

    def _acknowledge_batch(self, messages: Sequence[Message[T, R]]) -> Flow[list[bool]]:
        held = [message for message in messages if not message.is_finalized]
        answers: Sequence[bool] = ()
        if held:
            handles = [message.receipt_handle for message in held]
            answers = yield self.step(self.store.acknowledge, handles)
        done = {
            id(message): _settled(message, ok) for message, ok in zip(held, answers, strict=True)
        }
        return [done.get(id(message), False) for message in messages]

    def _extend_batch(self, messages: Sequence[Message[T, R]], timeout: float) -> Flow[list[bool]]:
        seconds = self.limits.visibility(timeout, "timeout")
        deadline = self.store.clock.monotonic() + seconds
        handles = [message.receipt_handle for message in messages]
        answers: Sequence[bool] = yield self.step(self.store.extend, handles, seconds)
        return [
            _recorded(partial(message.extended, deadline, ok, seconds))
            for message, ok in zip(messages, answers, strict=True)
        ]

    def _stats(self) -> Flow[MailboxStats]:
        stats: QueueStats = yield self.step(self.store.stats)
        return MailboxStats(*stats)

    def _peek(self, limit: int) -> Flow[list[Peeked[T]]]:
        seen: Sequence[Seen] = yield self.step(self.store.peek, self.limits.batch(limit, "limit"))
        return [Peeked(self, one) for one in seen]

    def _call(self, method: Callable[..., Any], *args: Any) -> Flow[Any]:
        return (yield self.step(method, *args))


def _settled(message: Message[Any, Any], ok: bool) -> bool:
    return _recorded(partial(message.settled, "acknowledged", ok))


def _recorded(record: Callable[[], None]) -> bool:
    """Let a message record the store's answer; False if it was a refusal."""
    try:
        record()
    except ReceiptHandleExpiredError:
        return False
    return True


def _checked_attributes(attributes: object) -> Mapping[str, str]:
    if not isinstance(attributes, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in attributes.items()
    ):
        raise InvalidParameterError(f"attributes must map text to text, not {attributes!r:.100}")
    return dict(attributes)


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
