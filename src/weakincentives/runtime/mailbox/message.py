"""A received message: what was sent, and what its consumer can do with it."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal

from typing_extensions import TypeVar

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
from .flow import Flow, Look
from .store import Leased, Seen

if TYPE_CHECKING:
    from .api import Mailbox
    from .replies import ReplyChannel
    from .typed import StoreMailbox

__all__ = ["Message", "Peeked"]

T = TypeVar("T")
R = TypeVar("R", default=None)

UNREAD: Any = object()
NO_ATTRIBUTES: Mapping[str, str] = {}

State = Literal["held", "acknowledged", "nacked", "lost"]


def as_datetime(seconds: float) -> datetime:
    """Return a wall-clock reading as a UTC datetime."""
    return datetime.fromtimestamp(seconds, UTC)


def read_body(sealer: Sealer, envelope: Envelope) -> Any:
    """Return the body, or raise what made it unreadable."""
    if isinstance(envelope, Unreadable):
        raise envelope.body
    return sealer.body(envelope)


class Message(Generic[T, R]):
    """One delivery of a message, and the lease on it.

    Settle it once: ``acknowledge()`` removes it, ``nack()`` gives it back. Both, and
    ``extend_visibility()``, return True or raise `ReceiptHandleExpiredError` when the lease is
    over, for then somebody else may hold the message.
    """

    _state: State = "held"
    replied = False
    """Whether a waiting caller got its reply through this delivery."""
    _body: Any = UNREAD

    def __init__(
        self,
        mailbox: "StoreMailbox[T, R]",
        leased: Leased,
        envelope: Envelope,
        deadline: float,
    ) -> None:
        # Attributes, not properties: every message pays for each look at them.
        self.mailbox = mailbox
        """Where the message was received."""
        self.lease_deadline = deadline
        """When the lease ends at the latest, on the mailbox's monotonic clock."""
        self.envelope = envelope
        self._leased = leased

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
        """How many of the earlier deliveries ended in a nack; the rest ended in silence."""
        return self._leased.nack_count

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
            self._body = read_body(self.mailbox.types.sealer, self.envelope)
        return self._body  # type: ignore[no-any-return]

    @property
    def payload(self) -> Any:
        """What the store keeps, as it is."""
        return self._leased.payload

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the sender attached."""
        return self.envelope.attributes or NO_ATTRIBUTES

    @property
    def reply_to(self) -> "Mailbox[R, None] | None":
        """Where the sender wants replies; raises `MailboxResolutionError` if it cannot be found."""
        envelope = self.envelope
        if isinstance(envelope.reply_to, str):
            envelope.reply_to = self.mailbox.resolve(envelope.reply_to)
        return envelope.reply_to  # type: ignore[no-any-return]

    @property
    def reply_channel(self) -> "ReplyChannel[R] | None":
        """Where one caller waits for one reply, if the message was sent so."""
        reply_id = self.envelope.reply_id
        return None if reply_id is None else self.mailbox.reply_channel(reply_id)

    @property
    def mailbox_name(self) -> str:
        """The name of the mailbox it was received from."""
        return self.mailbox.name

    @property
    def is_finalized(self) -> bool:
        """Whether the message was acknowledged or given back."""
        return self._state in ("acknowledged", "nacked")

    def is_simply_held(self, box: "StoreMailbox[Any, Any]") -> bool:
        """Whether it was received from this very mailbox, is held, and nobody waits for a reply."""
        return self.mailbox is box and self._state == "held" and self.envelope.reply_id is None

    def expects_reply(self) -> bool:
        """Whether a caller waits for a reply to this message."""
        return self.envelope.reply_id is not None

    def reply(self, value: R, *, message_id: str | None = None) -> str:
        """Reply to the sender and return the reply's id.

        To a ``reply_to`` mailbox, as often as wanted until the message is settled; the same
        ``message_id`` is the same reply there. To a caller that waits, once; the message is then
        acknowledged too.
        """
        return self.mailbox.run("reply", self._reply(value, message_id))

    async def reply_async(self, value: R, *, message_id: str | None = None) -> str:
        """Do what `reply` does."""
        return await self.mailbox.run_async(self._reply(value, message_id))

    def acknowledge(self) -> bool:
        """Remove the message from the queue: it is done."""
        store = self.mailbox.store
        if self._state != "held" or self.envelope.reply_id is not None or store.steps == "awaited":
            return self.mailbox.run("acknowledge", self._acknowledge())
        # Nobody waits for a reply: a single step, and the one that every message takes.
        self.settled("acknowledged", store.acknowledge((self._leased.handle,))[0])
        return True

    async def acknowledge_async(self) -> bool:
        """Do what `acknowledge` does."""
        return await self.mailbox.run_async(self._acknowledge())

    def nack(self, *, visibility_timeout: float = 0) -> bool:
        """Give the message back, to be received again after ``visibility_timeout`` seconds."""
        return self.mailbox.run("nack", self._nack(visibility_timeout))

    async def nack_async(self, *, visibility_timeout: float = 0) -> bool:
        """Do what `nack` does."""
        return await self.mailbox.run_async(self._nack(visibility_timeout))

    def extend_visibility(self, timeout: float) -> bool:
        """Let the lease end ``timeout`` seconds from now."""
        return self.mailbox.run("extend_visibility", self._extend(timeout))

    async def extend_visibility_async(self, timeout: float) -> bool:
        """Do what `extend_visibility` does."""
        return await self.mailbox.run_async(self._extend(timeout))

    def __repr__(self) -> str:
        return (
            f"<Message {self.id} from {self.mailbox.name!r}, "
            f"delivery {self.delivery_count}, {self._state}>"
        )

    def _acknowledge(self) -> Flow[bool]:
        if self._state == "acknowledged" and self.replied:
            return True
        self._check_held()
        yield from self.reply_due()
        (done,) = yield self.mailbox.step(self.mailbox.store.acknowledge, (self._leased.handle,))
        self.settled("acknowledged", done)
        return True

    def reply_due(self) -> Flow[None]:
        """Raise if a caller still waits for a reply to this message."""
        if self.envelope.reply_id is not None and not self.replied:
            channel = self.mailbox.reply_channel(self.envelope.reply_id)
            if (yield from channel.open_flow()):
                raise ReplyExpectedError(
                    f"{self!r}: its sender waits for a reply; call reply(), "
                    f"or nack() to let somebody else try"
                )

    def _nack(self, visibility_timeout: float) -> Flow[bool]:
        delay = self.mailbox.limits.visibility(visibility_timeout)
        self._check_held()
        (done,) = yield self.mailbox.step(self.mailbox.store.release, (self._leased.handle,), delay)
        self.settled("nacked", done, delay)
        return True

    def _extend(self, timeout: float) -> Flow[bool]:
        seconds = self.mailbox.limits.visibility(timeout, "timeout")
        self._check_held()
        started = self.mailbox.store.clock.monotonic()
        (done,) = yield self.mailbox.step(
            self.mailbox.store.extend, (self._leased.handle,), seconds
        )
        self.extended(started + seconds, done, seconds)
        return True

    def _reply(self, value: R, message_id: str | None) -> Flow[str]:
        if self.replied:
            raise ReplyAlreadySentError
        if self.is_finalized:
            raise MessageFinalizedError
        if self._state == "lost" or self.mailbox.store.clock.monotonic() >= self.lease_deadline:
            raise ReceiptHandleExpiredError(f"{self!r}: the lease is over, nothing was replied")
        reply_id = self.envelope.reply_id
        if reply_id is None:
            target = self.reply_to
            if target is None:
                raise NoReplyChannelError(f"{self!r}: the sender named nowhere to reply to")
            sent: str = yield Look(
                partial(target.send, value, message_id=message_id),
                partial(target.send_async, value, message_id=message_id),
            )
            self.mailbox.publish(MessageReplied, self.id, sent)
            return sent
        channel = self.mailbox.reply_channel(reply_id)
        with self.mailbox.store.together():
            # False means that the first value stands, or nobody waits any more: done either way.
            yield from channel.resolve_flow(value)
            (done,) = yield self.mailbox.step(
                self.mailbox.store.acknowledge, (self._leased.handle,)
            )
            self.settled("acknowledged", done)
        self.replied = True
        self.mailbox.publish(MessageReplied, self.id, reply_id)
        return reply_id

    def settled(self, state: State, done: bool, delay: float = 0.0) -> None:
        """Record how the store answered a settlement; raise if it was refused."""
        if not done:
            self.lose()
        self._state = state
        if self.mailbox.dispatcher is None:
            return
        if state == "acknowledged":
            self.mailbox.publish(MessageAcknowledged, self.id)
        else:
            self.mailbox.publish(MessageNacked, self.id, delay)

    def extended(self, deadline: float, done: bool, seconds: float) -> None:
        """Record how the store answered an extension; raise if it was refused."""
        if not done:
            self.lose()
        self.lease_deadline = deadline
        self.mailbox.publish(LeaseExtended, self.id, seconds)

    def lose(self) -> None:
        """Record that the lease is over, and raise."""
        # A late extension is refused because the message was settled: that stands.
        if not self.is_finalized:
            self._state = "lost"
            self.mailbox.publish(LeaseLost, self.id)
        raise ReceiptHandleExpiredError(
            f"{self!r}: its lease has ended, somebody else may have it now"
        )

    def _check_held(self) -> None:
        if self._state != "held":
            raise ReceiptHandleExpiredError(f"{self!r}: it is not held any more")


class Peeked(Generic[T]):
    """A message that waits in a queue, looked at without receiving it."""

    __slots__ = ("_owner", "_seen")

    def __init__(self, owner: "StoreMailbox[T, Any]", seen: Seen) -> None:
        self._owner = owner
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
        """What the store keeps, as it is."""
        return self._seen.payload

    @property
    def body(self) -> T:
        """What was sent; raises `SerializationError` if it cannot be read as the declared type."""
        sealer = self._owner.sealer
        return read_body(sealer, sealer.open(self._seen.payload))  # type: ignore[no-any-return]

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the sender attached."""
        try:
            return self._owner.sealer.open(self._seen.payload).attributes or NO_ATTRIBUTES
        except SerializationError:
            return NO_ATTRIBUTES

    def __repr__(self) -> str:
        return f"<Peeked {self.id} in {self._owner.name!r}>"
