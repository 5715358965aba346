"""A received message: what was sent, and what its consumer can do with it."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple

from typing_extensions import TypeVar

from weakincentives.runtime.mailbox.replies.failure import Failed
from weakincentives.runtime.mailbox.seam.optional_protocols import (
    Answer,
    ReplyValue,
    can_post_starts,
    cuts_leases,
)
from weakincentives.runtime.mailbox.seam.process_name import process_name
from weakincentives.runtime.mailbox.seam.reply_table import JobStart, ReplyRow, ReplyState
from weakincentives.runtime.mailbox.seam.store import GivingBack, Leased, Outgoing, Seen

from .cause import caused_by
from .envelope import Envelope, Sealer, Unreadable
from .errors import (
    MessageFinalizedError,
    NoReplyChannelError,
    ReceiptHandleExpiredError,
    ReplyAlreadySentError,
    ReplyExpectedError,
    SerializationError,
)
from .events import LeaseExtended, LeaseLost, MessageAcknowledged, MessageNacked, MessageReplied

if TYPE_CHECKING:
    from weakincentives.runtime.mailbox.replies.channel import ReplyChannel

    from .api import Mailbox
    from .mailbox import StoreMailbox

__all__ = ["Carried", "Message", "Peeked"]

T = TypeVar("T")
R = TypeVar("R", default=None)

UNREAD: Any = object()
NO_ATTRIBUTES: Mapping[str, str] = {}
EPOCH = datetime.fromtimestamp(0, UTC)
SURELY_AWAITED = 1.0
"""A worker asks the reply itself if its caller waits for fewer seconds than this."""

State = Literal["held", "acknowledged", "nacked", "lost"]


def as_datetime(seconds: float) -> datetime:
    """Return seconds since the epoch as a UTC datetime; the epoch if they are out of range."""
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (ValueError, OverflowError, OSError):
        # Another program may have written any number into the store.
        return EPOCH


def read_body(sealer: Sealer, envelope: Envelope) -> Any:
    """Return the body, or raise what made it unreadable."""
    if isinstance(envelope, Unreadable):
        raise envelope.body
    return sealer.body(envelope)


class Message(Generic[T, R]):
    """One delivery of a message, and the lease on it.

    Settle it once: ``acknowledge()`` removes it, ``nack()`` gives it back. Both, and
    ``extend_visibility()``, return True or raise `ReceiptHandleExpiredError` when the lease is
    over, because another consumer may hold the message then.
    """

    _state: State = "held"
    _replied = False
    """Whether a waiting caller got its reply through this delivery."""
    _is_posted = False
    """Whether the start was sent to the reply without waiting until it was recorded."""
    _is_prolonged = False
    """Whether the reply was told to expire later, because this delivery is put off."""
    _body: Any = UNREAD
    _reply_row: ReplyRow | None = None
    """The reply that a caller waits for, as it was when this was last asked."""

    def __init__(
        self,
        mailbox: "StoreMailbox[T, R]",
        leased: Leased,
        envelope: Envelope,
        deadline: float,
    ) -> None:
        # Plain attributes: properties would make every use of them slower.
        self._mailbox = mailbox
        self._lease_deadline = deadline
        """When the lease ends at the latest, on the mailbox's monotonic clock."""
        self._envelope = envelope
        self._leased = leased

    @property
    def mailbox(self) -> "Mailbox[T, R]":
        """Where the message was received."""
        return self._mailbox

    @property
    def id(self) -> str:
        """The message's own id, the same in every delivery."""
        return self._leased.id

    @property
    def receipt_handle(self) -> str:
        """Proof of this delivery's lease; another delivery has another one."""
        return self._leased.handle

    @property
    def delivery_count(self) -> int:
        """How many times the message has been received; 1 the first time."""
        return self._leased.delivery_count

    @property
    def nack_count(self) -> int:
        """How many of the earlier deliveries ended in a nack; in the rest, the lease ran out."""
        return self._leased.nack_count

    @property
    def put_off_count(self) -> int:
        """How many of the nacks only put the message off, because its handler asked to."""
        return self._leased.put_off_count

    @property
    def attempts(self) -> int:
        """The number of deliveries minus the number of times the message was put off."""
        return self._leased.delivery_count - self._leased.put_off_count

    @property
    def enqueued_at(self) -> datetime:
        """When the message was sent."""
        return as_datetime(self._leased.enqueued_at)

    @property
    def first_received_at(self) -> datetime:
        """When the message was received for the first time."""
        return as_datetime(self._leased.first_received_at)

    @property
    def body(self) -> T:
        """What was sent; raises `SerializationError` if it cannot be read as the declared type."""
        if self._body is UNREAD:
            self._body = read_body(self._mailbox._types.sealer, self._envelope)
        return self._body  # type: ignore[no-any-return]

    @property
    def payload(self) -> Any:
        """What the store keeps for the message, not decoded."""
        return self._leased.payload

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the sender attached."""
        return self._envelope.attributes or NO_ATTRIBUTES

    @property
    def reply_to(self) -> "Mailbox[R, None] | None":
        """Where the sender wants replies; raises `MailboxResolutionError` if it cannot be found."""
        envelope = self._envelope
        if isinstance(envelope.reply_to, str):
            envelope.reply_to = self._mailbox._resolve(envelope.reply_to)
        return envelope.reply_to  # type: ignore[no-any-return]

    @property
    def reply_channel(self) -> "ReplyChannel[R] | None":
        """The channel to the caller who waits for one reply, or None."""
        reply_id = self._envelope.reply_id
        return None if reply_id is None else self._mailbox._reply_channel(reply_id, self.id)

    @property
    def is_finalized(self) -> bool:
        """Whether the message was acknowledged or given back."""
        return self._state in ("acknowledged", "nacked")

    def _is_simply_held(self, box: "StoreMailbox[Any, Any]") -> bool:
        """Whether this mailbox object received the message, holds it, and no caller waits."""
        return self._mailbox is box and self._state == "held" and self._envelope.reply_id is None

    def expects_reply(self) -> bool:
        """Whether a caller waits for a reply to this message."""
        return self._envelope.reply_id is not None

    def reply(self, value: R, *, message_id: str | None = None) -> str:
        """Reply to the sender and return the reply's id.

        A ``reply_to`` mailbox takes any number of replies until the message is settled; there, a
        repeated ``message_id`` is the same reply. A caller who waits takes one reply, and sending
        it also acknowledges the message.
        """
        reply_id = self._envelope.reply_id
        if reply_id is not None:
            return self._mailbox._run("reply", lambda: self._reply(reply_id, value))
        target = self._mailbox._run("reply", lambda: self._reply_target(value))
        with caused_by(self):
            sent = target.send(value, message_id=message_id)
        return self._publish_reply(sent, target.name)

    async def reply_async(self, value: R, *, message_id: str | None = None) -> str:
        """Do what `reply` does."""
        reply_id = self._envelope.reply_id
        if reply_id is not None:
            return await self._mailbox._run_async(lambda: self._reply(reply_id, value))
        # Its steps may be taken in another way than those of this mailbox.
        target = await self._mailbox._run_async(lambda: self._reply_target(value))
        with caused_by(self):
            sent = await target.send_async(value, message_id=message_id)
        return self._publish_reply(sent, target.name)

    def acknowledge(self) -> bool:
        """Remove the message from the queue: it is done."""
        plain = self._mailbox._plain
        if plain is None or self._state != "held" or self._envelope.reply_id is not None:
            return self._mailbox._run("acknowledge", self._acknowledge)
        # The hot path: no caller waits for a reply, so a single step is enough.
        return self._settle("acknowledged", plain.acknowledge_now((self._leased.handle,))[0])

    async def acknowledge_async(self) -> bool:
        """Do what `acknowledge` does."""
        return await self._mailbox._run_async(self._acknowledge)

    def nack(self, *, visibility_timeout: float = 0) -> bool:
        """Give the message back, to be received again after ``visibility_timeout`` seconds."""
        return self._mailbox._run("nack", lambda: self._nack(visibility_timeout))

    async def nack_async(self, *, visibility_timeout: float = 0) -> bool:
        """Do what `nack` does."""
        return await self._mailbox._run_async(lambda: self._nack(visibility_timeout))

    def extend_visibility(self, timeout: float) -> bool:
        """Make the lease end ``timeout`` seconds from now."""
        return self._mailbox._run("extend_visibility", lambda: self._extend(timeout))

    async def extend_visibility_async(self, timeout: float) -> bool:
        """Do what `extend_visibility` does."""
        return await self._mailbox._run_async(lambda: self._extend(timeout))

    def __repr__(self) -> str:
        return (
            f"<Message {self.id} from {self._mailbox.name!r}, "
            f"delivery {self.delivery_count}, {self._state}>"
        )

    async def _acknowledge(self) -> bool:
        if self._state == "acknowledged" and self._replied:
            return True
        self._check_held()
        await self._check_no_reply_due()
        (done,) = await self._mailbox.store.acknowledge((self._leased.handle,))
        return self._settle("acknowledged", done)

    async def _check_no_reply_due(self) -> None:
        """Raise if a caller still waits for a reply to this message."""
        if await self._awaits_reply():
            raise ReplyExpectedError(
                f"{self!r}: its sender waits for a reply; call reply(), "
                f"or nack() to let another worker try"
            )

    async def _awaits_reply(self) -> bool:
        """Return whether a caller still waits for a reply to this message."""
        reply_id, mailbox = self._envelope.reply_id, self._mailbox
        if reply_id is None or self._replied:
            return False
        row = self._reply_row = await mailbox._replies().table.get(reply_id)
        return row is not None and row.is_awaited_from(mailbox._owner_of_reply(self.id))

    async def _start(self) -> bool:
        """Record that a worker begins the job; False if it is not worth doing any more."""
        reply_id, mailbox, leased = self._envelope.reply_id, self._mailbox, self._leased
        if reply_id is None:
            return True
        owner, row = mailbox._owner_of_reply(self.id), leased.reply
        if row is None:
            start = JobStart(leased.handle, process_name(), leased.delivery_count)
            table, expected = mailbox._replies().table, self._expected_row(reply_id, owner)
            if expected is not None and can_post_starts(table):
                self._is_posted = await table.post_start(reply_id, owner, start)
            row = expected if self._is_posted else await table.start(reply_id, owner, start)
        self._reply_row = row
        # A replay was asked for by a person, whether or not the caller still waits.
        is_awaited = row is not None and row.is_awaited_from(owner)
        return is_awaited or self._envelope.origin is not None

    def _expected_row(self, reply_id: str, owner: str) -> ReplyRow | None:
        """Return the reply as it must be if this is the first delivery; None if nobody can know.

        Nobody has answered it yet, a cancel would have removed the message, and the message says
        when the reply expires.
        """
        leased, timeout = self._leased, self._envelope.reply_timeout
        if timeout is None or leased.delivery_count > 1 or self._envelope.origin is not None:
            return None
        sent, expires = leased.enqueued_at, leased.enqueued_at + timeout
        # Both by the store's clock; the second also if the message was held here for long.
        left = min(expires - leased.first_received_at, expires - self._mailbox.store.clock.time())
        if left < SURELY_AWAITED:
            return None
        return ReplyRow(reply_id, ReplyState.PENDING, None, sent, expires, None, owner, timeout)

    async def _is_cancelled(self) -> bool:
        """Return whether the caller who waits for a reply has cancelled it."""
        reply_id = self._envelope.reply_id
        if reply_id is None:
            return False
        row = await self._mailbox._replies().table.get(reply_id)
        return (
            row is not None
            and row.state == ReplyState.CANCELLED
            and row.belongs_to(self._mailbox._owner_of_reply(self.id))
        )

    async def _emit(self, payloads: Sequence[Any]) -> bool:
        """Add parts to the reply; False if nobody waits for them, or this delivery is over."""
        reply_id, mailbox = self._envelope.reply_id, self._mailbox
        assert reply_id is not None
        if self._state != "held":
            return False  # the table accepts this start's parts until there is another start
        owner, table = mailbox._owner_of_reply(self.id), mailbox._replies().table
        handle = self._leased.handle
        if self._is_posted:  # the table must know of the start before it takes the first part
            start = JobStart(handle, process_name(), self._leased.delivery_count)
            await table.start(reply_id, owner, start)
            self._is_posted = False
        return await table.emit(reply_id, owner, handle, payloads)

    async def _nack(self, visibility_timeout: float) -> bool:
        delay = self._mailbox.limits.visibility(visibility_timeout)
        self._check_held()
        (done,) = await self._mailbox.store.release((self._leased.handle,), delay)
        return self._settle("nacked", done, delay)

    async def _extend(self, timeout: float) -> bool:
        seconds = self._mailbox.limits.visibility(timeout, "timeout")
        self._check_held()
        started = self._mailbox.store.clock.monotonic()
        (done,) = await self._mailbox.store.extend((self._leased.handle,), seconds)
        self._record_extension(started + seconds, done, seconds)
        return True

    def _carried_reply(self, value: Any, *, message_id: str | None = None) -> "Carried | None":
        """Return a reply that can go out in the step that acknowledges this message.

        None if the store cannot do that; the caller then uses `reply`.
        """
        self._check_reply()
        if self._envelope.reply_id is not None:
            return self._carried_value(self._envelope.reply_id, value)
        target = self.reply_to
        if target is None:
            return None
        self._check_reply_value(value)
        return self._carried_to(target, value, message_id, reply=True)

    def _carried_to(
        self, target: Any, value: Any, message_id: str | None, *, reply: bool = False
    ) -> "Carried | None":
        """Return a message to another mailbox that can go out with the acknowledgement, or None."""
        store, carrier = getattr(target, "store", None), self._mailbox._carrier
        if store is None or carrier is None or not carrier.carries(store):
            return None
        with caused_by(self):
            message: Outgoing = target._outgoing(value, message_id)
        answer = Answer(self._leased.handle, store, message)
        return Carried(self, answer, partial(self._carried, target, message, reply))

    def _carried_value(self, reply_id: str, value: Any) -> "Carried | None":
        replies, carrier = self._mailbox._replies(), self._mailbox._carrier
        if carrier is None or not carrier.carries(replies.table):
            return None
        owner = self._mailbox._owner_of_reply(self.id)
        failed = isinstance(value, Failed)
        resolution = ReplyValue(reply_id, replies.sealed(value), owner, failed)
        answer = Answer(self._leased.handle, replies.table, resolution)
        return Carried(self, answer, partial(self._record_reply, reply_id))

    def _carried(self, target: Any, message: Outgoing, reply: bool) -> None:
        sent = target._was_sent(message)
        if reply:
            self._publish_reply(sent, target.name)

    def _record_reply(self, reply_id: str) -> None:
        self._replied = True
        self._publish_reply(reply_id)

    def _check_reply(self) -> None:
        if self._replied:
            raise ReplyAlreadySentError
        if self.is_finalized:
            raise MessageFinalizedError
        if self._state == "lost" or self._mailbox.store.clock.monotonic() >= self._lease_deadline:
            raise ReceiptHandleExpiredError(f"{self!r}: the lease is over; no reply was sent")

    def _check_reply_value(self, value: R) -> None:
        check = self._mailbox._types.reply_check
        if check is not None:
            check.require(value)

    async def _reply_target(self, value: R) -> "Mailbox[R, None]":
        """Return the mailbox that replies go to, if this one may go there now."""
        self._check_reply()
        target = self.reply_to
        if target is None:
            raise NoReplyChannelError(f"{self!r}: the sender gave no address for replies")
        self._check_reply_value(value)
        return target

    def _publish_reply(self, sent: str, to: str | None = None) -> str:
        self._mailbox._publish(MessageReplied, self.id, sent, to)
        return sent

    async def _reply(self, reply_id: str, value: Any) -> str:
        """Reply to a caller that waits, with a value or a `Failed`, and acknowledge the message."""
        self._check_reply()
        (done,) = await self._answer_and_acknowledge(reply_id, value)
        # Recorded only after the commit, so that a step that failed can be repeated.
        self._settle("acknowledged", done)
        self._record_reply(reply_id)
        return reply_id

    async def _answer_and_acknowledge(self, reply_id: str, value: Any) -> Sequence[bool]:
        handles, carrier = (self._leased.handle,), self._mailbox._carrier
        carried = self._carried_value(reply_id, value)
        if carried is not None and carrier is not None:
            return await carrier.acknowledge(handles, answers=(carried.answer,))
        # It returns False if another reply came first, or if no caller waits any more. Either way
        # the message is done.
        replies, owner = self._mailbox._replies(), self._mailbox._owner_of_reply(self.id)
        failed = isinstance(value, Failed)
        await replies.table.resolve(reply_id, replies.sealed(value), owner, failed=failed)
        return await self._mailbox.store.acknowledge(handles)

    def _settle(
        self, state: State, done: bool, delay: float = 0.0, how: GivingBack = "failed"
    ) -> bool:
        """Record a settlement and return True; raise if the store refused it."""
        if not done:
            self._lose()
        self._state = state
        if self._mailbox.dispatcher is not None:
            if state == "acknowledged":
                self._mailbox._publish(MessageAcknowledged, self.id)
            else:
                self._mailbox._publish(MessageNacked, self.id, delay, how)
        return True

    def _record_extension(self, deadline: float, done: bool, seconds: float) -> None:
        """Record an extension; raise if the store refused it."""
        if not done:
            self._lose()
        store = self._mailbox.store
        if cuts_leases(store):
            deadline = min(deadline, store.lease_deadline(self._leased.handle))
        self._lease_deadline = deadline
        self._mailbox._publish(LeaseExtended, self.id, seconds)

    def _lose(self) -> None:
        """Record that the lease is over, and raise."""
        # If the message was settled, a late extension is refused too, but nothing was lost.
        if not self.is_finalized:
            self._state = "lost"
            self._mailbox._publish(LeaseLost, self.id)
        raise ReceiptHandleExpiredError(
            f"{self!r}: its lease has ended; another consumer may have it now"
        )

    def _check_held(self) -> None:
        if self._state != "held":
            raise ReceiptHandleExpiredError(f"{self!r}: it is no longer held")


class Carried(NamedTuple):
    """An answer that goes out in the step that acknowledges its message."""

    message: Message[Any, Any]
    answer: Answer
    done: Callable[[], None]
    """To be called after the step: publishes that the answer was sent."""


class Peeked(Generic[T]):
    """A message in a queue, seen without receiving it."""

    __slots__ = ("_mailbox", "_seen")

    def __init__(self, mailbox: "StoreMailbox[T, Any]", seen: Seen) -> None:
        self._mailbox = mailbox
        self._seen = seen

    @property
    def id(self) -> str:
        """The message's own id."""
        return self._seen.id

    @property
    def delivery_count(self) -> int:
        """How many times the message has been received."""
        return self._seen.delivery_count

    @property
    def nack_count(self) -> int:
        """How many of the deliveries ended in a nack."""
        return self._seen.nack_count

    @property
    def enqueued_at(self) -> datetime:
        """When the message was sent."""
        return as_datetime(self._seen.enqueued_at)

    @property
    def payload(self) -> Any:
        """What the store keeps for the message, not decoded."""
        return self._seen.payload

    @property
    def body(self) -> T:
        """What was sent; raises `SerializationError` if it cannot be read as the declared type."""
        sealer = self._mailbox._sealer
        return read_body(sealer, sealer.open(self._seen.payload))  # type: ignore[no-any-return]

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the sender attached."""
        try:
            return self._mailbox._sealer.open(self._seen.payload).attributes or NO_ATTRIBUTES
        except SerializationError:
            return NO_ATTRIBUTES

    def __repr__(self) -> str:
        return f"<Peeked {self.id} in {self._mailbox.name!r}>"
