"""The mailbox of every backend: types, validation, replies and waiting over any `Store`."""

import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from weakincentives.dispatch import Dispatcher, publish
from weakincentives.runtime.mailbox.replies.channel import ReplyChannel
from weakincentives.runtime.mailbox.replies.foreign import ForeignReplyTable, ThreadedReplyTable
from weakincentives.runtime.mailbox.replies.reply import PendingReply
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.replies.typed_reply_table import TypedReplyTable
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.loop import LoopStore
from weakincentives.runtime.mailbox.seam.optional_protocols import (
    AnswerCarrier,
    LeaseState,
    ReplyMaker,
    can_carry,
    can_make_lease_keepers,
    can_make_replies,
)
from weakincentives.runtime.mailbox.seam.plain_steps import PlainSteps, plain_steps
from weakincentives.runtime.mailbox.seam.reply_table import ReplyStore, ReplyTable
from weakincentives.runtime.mailbox.seam.step_threads import hop
from weakincentives.runtime.mailbox.seam.store import GivingBack, Leasing, Listener, Outgoing, Store
from weakincentives.runtime.mailbox.seam.waiting import StopSignal

from . import cancel as cancelling
from . import receive as receiving
from . import send as sending
from .api import Mailbox, MailboxStats
from .capabilities import Capabilities
from .envelope import Sealer
from .errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxResolutionError,
    UnsupportedOperationError,
)
from .events import MessagesPurged
from .limits import Limits, check_id
from .message import Carried, Message, Peeked
from .resolver import MailboxResolver
from .seam.forks import begin_anew_in_children, usable_lock
from .types import DeclaredTypes

__all__ = ["MailboxOptions", "StoreMailbox"]

T = TypeVar("T")
R = TypeVar("R", default=None)
V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class MailboxOptions:
    """The options of a mailbox that do not depend on its backend."""

    body_type: Any = None
    reply_type: Any = None
    reply_resolver: MailboxResolver | None = None
    reply_store: ReplyStore[Any] | None = None
    dispatcher: Dispatcher | None = None


class StoreMailbox(Generic[T, R]):
    """A `Mailbox` over any `Store`. A backend's public class binds its store to this one."""

    def __init__(
        self,
        store: Store,
        sealer_for: Callable[[Any], Sealer],
        options: MailboxOptions,
    ) -> None:
        self.limits: Limits = store.limits
        self.capabilities: Capabilities = store.capabilities
        self.dispatcher = options.dispatcher
        self._types = DeclaredTypes(type(self), options.body_type, options.reply_type, sealer_for)
        self._resolver = options.reply_resolver
        self._reply_table = _table_of(options.reply_store, store)
        self._use(store)
        self._typed_replies: TypedReplyTable | None = None
        self._lease_keeper: Store | None = None
        self._listeners: set[Listener] = set()
        self._lock: Any = threading.RLock()
        self.closed = False
        begin_anew_in_children(self)

    def _use(self, store: Store) -> None:
        """Use this store; look up once what it can do, because every send and receive asks."""
        self.store = store
        self._plain: PlainSteps | None = plain_steps(store)
        self._carrier: AnswerCarrier | None = store if can_carry(store) else None
        table = self._reply_table
        self._reply_maker: ReplyMaker | None = store if can_make_replies(store, table) else None
        self._blocking = [
            place for place in (store, table) if place is not None and place.steps == "blocking"
        ]
        self._in_loop = LoopStore(store)

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.store.name

    @property
    def _sealer(self) -> Sealer:
        """The sealer for bodies of the declared type."""
        return self._types.sealer

    @property
    def __orig_class__(self) -> Any:
        """The alias that made this mailbox, such as ``Box[Order]``; `typing` sets it."""
        return self._types.alias

    @__orig_class__.setter
    def __orig_class__(self, alias: Any) -> None:
        self._types.set_alias(alias)

    @property
    def body_type(self) -> Any:
        """The declared type of the bodies, or None."""
        return self._types.body

    def _bind(self, body_type: Any, reply_type: Any) -> None:
        """Declare the types of a mailbox that has none; a loop declares its own here."""
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
        if self._plain is None:
            raise self._only_async("send")
        message = sending.outgoing(self, body, delay_seconds, reply_to, attributes, message_id)
        try:
            self._plain.put_now((message,))
        except Exception as error:
            sending.not_sent(self, (message.id,), error)
            raise
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
        try:
            await self._run_async(lambda: self.store.put((message,)))
        except Exception as error:
            sending.not_sent(self, (message.id,), error)
            raise
        return sending.sent(self, message)

    def send_batch(
        self,
        bodies: Sequence[T],
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Store several messages and return their ids.

        Up to a thousand messages (``limits.max_send_batch``) are stored in one step, all or none.
        A longer batch takes several steps, in order; if one of them fails, the error's ``sent_ids``
        lists the messages that were stored before.
        """
        if self._plain is None:
            raise self._only_async("send_batch")
        messages = sending.outgoing_batch(self, bodies, delay_seconds, reply_to, message_ids)
        return run(lambda: sending.send_batch(self, messages))

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
        return await self._run_async(lambda: sending.send_batch(self, messages))

    def send_expecting_reply(
        self,
        body: T,
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        attributes: Mapping[str, str] | None = None,
        keep: float | None = None,
    ) -> PendingReply[R]:
        """Store a message and return a handle on the one reply to it.

        Who has the reply's id can read it too: see `reply`. With ``keep``, it can be read any
        number of times for so many seconds after it was settled, also if it failed; without, the
        handle that this returns removes a value that it has read.
        """
        return self._run(
            "send_expecting_reply",
            lambda: sending.send_expecting_reply(
                self, body, reply_timeout, delay_seconds, attributes, keep
            ),
        )

    async def send_expecting_reply_async(
        self,
        body: T,
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        attributes: Mapping[str, str] | None = None,
        keep: float | None = None,
    ) -> PendingReply[R]:
        """Do what `send_expecting_reply` does."""
        return await self._run_async(
            lambda: sending.send_expecting_reply(
                self, body, reply_timeout, delay_seconds, attributes, keep
            )
        )

    def send_batch_expecting_replies(
        self,
        bodies: Sequence[T],
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        keep: float | None = None,
    ) -> list[PendingReply[R]]:
        """Store several messages and return a handle on the reply to each, in order.

        They are stored as `send_batch` stores them, and the replies with them; `as_completed`
        waits for many replies. If a step fails, the error's ``sent_replies`` has the replies to the
        messages that were stored before.
        """
        return self._run(
            "send_batch_expecting_replies",
            lambda: sending.send_batch_expecting_replies(
                self, bodies, reply_timeout, delay_seconds, keep
            ),
        )

    async def send_batch_expecting_replies_async(
        self,
        bodies: Sequence[T],
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        keep: float | None = None,
    ) -> list[PendingReply[R]]:
        """Do what `send_batch_expecting_replies` does."""
        return await self._run_async(
            lambda: sending.send_batch_expecting_replies(
                self, bodies, reply_timeout, delay_seconds, keep
            )
        )

    def reply(self, id: str) -> PendingReply[R]:
        """Return a handle on the reply with this id, which any process may use."""
        return PendingReply(self._replies(), check_id("id", id), store_of=self._store_of)

    def cancel(self, message_id: str) -> bool:
        """Cancel a message: True if it was there, and so will not be run to its end.

        One that waits is removed. A handler that runs is told within seconds: an async one is
        cancelled, a plain one sees it in ``job.cancelled``. A caller who waits for its reply gets
        `ReplyCancelledError`.
        """
        return self._run("cancel", lambda: cancelling.cancel(self, message_id))

    async def cancel_async(self, message_id: str) -> bool:
        """Do what `cancel` does."""
        return await self._run_async(lambda: cancelling.cancel(self, message_id))

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Lease up to ``max_messages``; wait up to ``wait_time_seconds`` for the first one."""
        plain = self._plain
        if plain is None:
            raise self._only_async("receive")
        asked = self.limits.receive(max_messages, visibility_timeout, wait_time_seconds)
        if wait_time_seconds or self.closed:
            return receiving.exchange_now(self, [], *asked)
        # Without a wait this is a single step, so the cost of a coroutine is avoided.
        started = self.store.clock.monotonic()
        try:
            leases = plain.lease_now(max_messages, visibility_timeout)
        except MailboxClosedError:
            if not self._was_closed():
                raise
            return []  # as if it had been closed a moment before
        return receiving.opened(self, leases, started + visibility_timeout)

    async def receive_async(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> list[Message[T, R]]:
        """Do what `receive` does; if it is cancelled, leased messages are given back."""
        asked = self.limits.receive(max_messages, visibility_timeout, wait_time_seconds)
        return await receiving.exchange(self, self._in_loop, (), *asked)

    def exchange(
        self,
        done: Sequence[Message[T, R]],
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
        stop: StopSignal | None = None,
    ) -> list[Message[T, R]]:
        """Acknowledge the messages in ``done`` and receive the next ones, in one step.

        A message whose lease had ended is not finalized; the others are. ``stop`` ends the wait.
        """
        if self._plain is None:
            raise self._only_async("exchange")
        asked = self.limits.receive(max_messages, visibility_timeout, wait_time_seconds)
        return receiving.exchange_now(self, done, *asked, stop=stop)

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
        held = await self._run_async(lambda: receiving.held_of(self, done))
        return await self._exchange_async(held, *asked)

    async def _exchange_async(
        self,
        held: Sequence[Message[T, R]],
        count: int,
        seconds: float,
        wait: float,
        carried: Sequence[Carried] = (),
        stop: StopSignal | None = None,
    ) -> list[Message[T, R]]:
        """Do what `receiving.exchange` does, without blocking the event loop."""
        return await receiving.exchange(
            self, self._in_loop, held, count, seconds, wait, carried, stop
        )

    def acknowledge_batch(self, messages: Sequence[Message[T, R]]) -> list[bool]:
        """Acknowledge several messages in one step; False where the lease had ended."""
        return self._run("acknowledge_batch", lambda: receiving.acknowledge_batch(self, messages))

    async def acknowledge_batch_async(self, messages: Sequence[Message[T, R]]) -> list[bool]:
        """Do what `acknowledge_batch` does."""
        return await self._run_async(lambda: receiving.acknowledge_batch(self, messages))

    def extend_batch(self, messages: Sequence[Message[T, R]], timeout: float) -> list[bool]:
        """Make several leases end ``timeout`` seconds from now; False where one had ended."""
        return self._run(
            "extend_batch", lambda: receiving.extend_batch(self, self.store, messages, timeout)
        )

    async def extend_batch_async(
        self, messages: Sequence[Message[T, R]], timeout: float
    ) -> list[bool]:
        """Do what `extend_batch` does."""
        return await self._run_async(
            lambda: receiving.extend_batch(self, self.store, messages, timeout)
        )

    def release_batch(
        self, messages: Sequence[Message[T, R]], delay: float = 0, how: GivingBack = "undone"
    ) -> list[bool]:
        """Give back several messages in one step, by default as if they had not been received.

        ``how`` says why they are given back. False where the lease had ended.
        """
        delay = self.limits.visibility(delay)
        return self._run(
            "release_batch", lambda: receiving.release_batch(self, messages, delay, how)
        )

    async def release_batch_async(
        self, messages: Sequence[Message[T, R]], delay: float = 0, how: GivingBack = "undone"
    ) -> list[bool]:
        """Do what `release_batch` does."""
        delay = self.limits.visibility(delay)
        return await self._run_async(lambda: receiving.release_batch(self, messages, delay, how))

    def purge(self) -> int:
        """Remove every message and return how many there were."""
        return self._was_purged(self._run("purge", self.store.purge))

    async def purge_async(self) -> int:
        """Do what `purge` does."""
        return self._was_purged(await self._run_async(self.store.purge))

    def _was_purged(self, count: int) -> int:
        if count:
            self._publish(MessagesPurged, count)
        return count

    def approximate_count(self) -> int:
        """Count all messages: pending, leased and delayed."""
        if self._plain is None:
            raise self._only_async("approximate_count")
        return self.stats().total

    async def approximate_count_async(self) -> int:
        """Do what `approximate_count` does."""
        return (await self.stats_async()).total

    def stats(self) -> MailboxStats:
        """Count the messages by state."""
        return MailboxStats(*self._run("stats", self.store.stats))

    async def stats_async(self) -> MailboxStats:
        """Do what `stats` does."""
        return MailboxStats(*await self._run_async(self.store.stats))

    def peek(self, limit: int = 10) -> list[Peeked[T]]:
        """Return messages that wait to be received, without receiving them."""
        most = self.limits.batch(limit, "limit")
        seen = self._run("peek", lambda: self.store.peek(most))
        return [Peeked(self, one) for one in seen]

    async def peek_async(self, limit: int = 10) -> list[Peeked[T]]:
        """Do what `peek` does."""
        most = self.limits.batch(limit, "limit")
        seen = await self._run_async(lambda: self.store.peek(most))
        return [Peeked(self, one) for one in seen]

    def close(self) -> None:
        """Stop sending and receiving; wake every waiter. Received messages can still be settled."""
        with self._lock:
            self.closed = True
            listeners = list(self._listeners)
        for listener in listeners:
            listener.interrupt()
        self._close_lease_keeper()

    def _was_closed(self) -> bool:
        """Return whether another thread has closed it meanwhile, however it looked before."""
        return self.closed

    def _begin_anew(self) -> None:
        """Forget locks and listeners in a forked child: threads of the parent hold them."""
        self._lock = usable_lock(self._lock)
        self._listeners = set()

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
    def _listening(self, store: Leasing, stop: StopSignal | None = None) -> Iterator[Listener]:
        """Yield a listener that `close` and ``stop`` can interrupt."""
        listener = store.listen()
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

    def _extend_leases(self, messages: Sequence[Message[T, R]], timeout: float) -> list[bool]:
        """Do what `extend_batch` does, from a thread, also if the mailbox has an asyncio client."""
        store = self._open_lease_keeper()
        try:
            return run(lambda: receiving.extend_batch(self, store, messages, timeout))
        finally:
            if self.closed:  # what was opened for messages that were received before
                self._close_lease_keeper()

    def _lease_states(self, messages: Sequence[Message[T, R]]) -> Sequence[LeaseState]:
        """Return what has become of leases, from a thread, also if there is an asyncio client."""
        store = self._open_lease_keeper()
        return run(lambda: cancelling.lease_states(self, store, messages))

    def _open_lease_keeper(self) -> Store:
        """Return a store with which a thread can extend leases; raise if there cannot be one."""
        if self._plain is not None:
            return self.store
        keeper = self._lease_keeper
        if keeper is None:
            if not can_make_lease_keepers(self.store):
                raise UnsupportedOperationError(
                    f"{self!r} has an asyncio client, and no thread could extend its leases"
                )
            keeper = self._lease_keeper = self.store.lease_keeper()
        return keeper

    def _close_lease_keeper(self) -> None:
        """Close that store, if there is one; it is opened anew if there are leases to extend."""
        keeper, self._lease_keeper = self._lease_keeper, None
        if keeper is not None:
            keeper.close()

    def _stats_from_thread(self) -> MailboxStats:
        """Do what `stats` does, from a thread, also if the mailbox has an asyncio client."""
        return MailboxStats(*run(self._open_lease_keeper().stats))

    def _outgoing(self, body: T, message_id: str | None) -> Outgoing:
        """Check and seal a message that another store will put into this queue."""
        return sending.outgoing(self, body, 0, None, None, message_id)

    def _was_sent(self, message: Outgoing) -> str:
        """Publish that such a message was stored, and return its id."""
        return sending.sent(self, message)

    def _run(self, method: str, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Run a coroutine over the store in this thread."""
        if self._plain is None:
            raise self._only_async(method)
        return run(make)

    async def _run_async(self, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Await a coroutine over the store, in another thread if its steps would block."""
        return await (hop(make, *self._blocking) if self._blocking else make())

    def _only_async(self, method: str) -> UnsupportedOperationError:
        """Return the error for a blocking method of a mailbox with an asyncio client."""
        return UnsupportedOperationError(
            f"{self!r} has an asyncio client: await {method}_async() instead of {method}()"
        )

    def _publish(self, event: Callable[..., object], *facts: object) -> None:
        """Publish an event if there is a dispatcher."""
        if self.dispatcher is not None:
            publish(self.dispatcher, event(self.store.name, *facts))

    def _resolve(self, identifier: str) -> Mailbox[Any, None]:
        """Return the mailbox that a message names for its replies."""
        if self._resolver is None:
            raise MailboxResolutionError(
                identifier,
                f"{self!r} cannot find the mailbox {identifier!r}: it has no reply_resolver",
            )
        found = self._resolver.resolve(identifier)
        if isinstance(found, StoreMailbox) and found.dispatcher is None:
            # Most are made for this one reply, and nobody else could give them one.
            found.dispatcher = self.dispatcher
        return found

    def _reply_channel(self, reply_id: str, message_id: str) -> ReplyChannel[R]:
        """Return the worker's end of the reply to a message."""
        return ReplyChannel(self._replies(), reply_id, self._owner_of_reply(message_id))

    def _owner_of_reply(self, message_id: str) -> str:
        """Return the owner of the reply to a message: its queue and its id."""
        return f"{self._queue_name}/{message_id}"

    def _store_of(self, queue: str) -> Store | None:
        """Return the store of a queue if it is this one."""
        return self.store if queue == self._queue_name else None

    @property
    def _queue_name(self) -> str:
        # The backend's own name for the queue: two mailboxes may use different names for it.
        return str(getattr(self.store, "queue_name", self.store.name))

    def _replies(self) -> TypedReplyTable:
        """Return where callers of this mailbox wait for replies."""
        if self._reply_table is None:
            raise UnsupportedOperationError(f"{self!r} has no reply store: pass reply_store=")
        if self._typed_replies is None or self._typed_replies.declared is not self._types.reply:
            self._typed_replies = TypedReplyTable(
                self._reply_table, self._types.reply, self.limits.max_bytes
            )
        return self._typed_replies


def _table_of(reply_store: ReplyStore[Any] | None, store: Store) -> ReplyTable | None:
    if reply_store is None:
        return None
    table: ReplyTable = (
        reply_store._table
        if isinstance(reply_store, StoredReplies)
        else ForeignReplyTable(reply_store)
    )
    if table.steps == "awaited" and store.steps != "awaited":
        raise InvalidParameterError(
            "reply_store has an asyncio client, but the mailbox does not; give both the same client"
        )
    if table.steps == "blocking" and store.steps == "awaited":
        return ThreadedReplyTable(table)
    return table
