"""The events that a mailbox publishes to a Dispatcher, all but one after they have happened."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .message import Message

__all__ = [
    "LeaseExtended",
    "LeaseLost",
    "LeasesExpired",
    "MailboxEvent",
    "MessageAcknowledged",
    "MessageCancelled",
    "MessageNacked",
    "MessageReceived",
    "MessageReplied",
    "MessageSending",
    "MessageSent",
    "MessagesDropped",
    "MessagesPurged",
    "MessagesSetAside",
    "QueuePaused",
    "QueueResumed",
    "SendFailed",
]


@dataclass(frozen=True, slots=True)
class MailboxEvent:
    """Something happened in the mailbox of this name."""

    mailbox: str


# Not a MailboxEvent: whoever counts those counts what has happened.
@dataclass(frozen=True, slots=True)
class MessageSending:
    """Messages are about to be sent, and a subscriber may add to their attributes.

    After it comes a `MessageSent` for each of them, or a `SendFailed` for all.
    """

    mailbox: str
    message_ids: Sequence[str]
    attributes: dict[str, str]
    """What every one of these messages will carry. Entries that are not text are left out."""
    cause: "Message[Any, Any] | None" = None
    """The received message that is being answered or dead-lettered, if any."""


@dataclass(frozen=True, slots=True)
class SendFailed(MailboxEvent):
    """Messages could not be sealed or stored."""

    message_ids: Sequence[str]
    error_type: str


@dataclass(frozen=True, slots=True)
class MessageSent(MailboxEvent):
    """A message was stored."""

    message_id: str


@dataclass(frozen=True, slots=True)
class MessageReceived(MailboxEvent):
    """A message was leased to a consumer in this process."""

    message_id: str
    delivery_count: int
    waited: float | None = field(default=None, compare=False)
    """At the first delivery: the seconds since the message was sent, its delay included."""
    attributes: Mapping[str, str] | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class MessageReplied(MailboxEvent):
    """A reply to a message was stored or sent."""

    message_id: str
    reply_id: str
    to: str | None = field(default=None, compare=False)
    """The mailbox that the reply was sent to; None if a caller waits for it."""


@dataclass(frozen=True, slots=True)
class MessageAcknowledged(MailboxEvent):
    """A message was finished and removed."""

    message_id: str


@dataclass(frozen=True, slots=True)
class MessageNacked(MailboxEvent):
    """A message was given back."""

    message_id: str
    visibility_timeout: float
    how: str = "failed"
    """``failed``, ``put_off``, or ``undone`` if no handler ran it."""


@dataclass(frozen=True, slots=True)
class MessageCancelled(MailboxEvent):
    """A message was cancelled by its id; if it is leased, its holder is told."""

    message_id: str


@dataclass(frozen=True, slots=True)
class LeaseExtended(MailboxEvent):
    """A lease was extended."""

    message_id: str
    timeout: float


@dataclass(frozen=True, slots=True)
class LeaseLost(MailboxEvent):
    """A settlement or an extension was refused because the lease had ended."""

    message_id: str


@dataclass(frozen=True, slots=True)
class LeasesExpired(MailboxEvent):
    """Leases have run out; their messages can be received again."""

    count: int


@dataclass(frozen=True, slots=True)
class MessagesDropped(MailboxEvent):
    """Messages older than the retention were removed unread."""

    count: int


@dataclass(frozen=True, slots=True)
class MessagesPurged(MailboxEvent):
    """All messages were removed by `Mailbox.purge`."""

    count: int


@dataclass(frozen=True, slots=True)
class MessagesSetAside(MailboxEvent):
    """Records that cannot be leased were moved out of the queue."""

    count: int


@dataclass(frozen=True, slots=True)
class QueuePaused(MailboxEvent):
    """The queue was paused here: nothing is received from it until it is resumed."""

    by: str
    because: str | None = None


@dataclass(frozen=True, slots=True)
class QueueResumed(MailboxEvent):
    """The queue was resumed here."""

    by: str
