"""The events that a mailbox publishes to a Dispatcher, each after it has happened."""

from dataclasses import dataclass

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
    "MessageSent",
    "MessagesDropped",
    "MessagesSetAside",
]


@dataclass(frozen=True, slots=True)
class MailboxEvent:
    """Something happened in the mailbox of this name."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class MessageSent(MailboxEvent):
    """A message was stored."""

    message_id: str


@dataclass(frozen=True, slots=True)
class MessageReceived(MailboxEvent):
    """A message was leased to a consumer in this process."""

    message_id: str
    delivery_count: int


@dataclass(frozen=True, slots=True)
class MessageReplied(MailboxEvent):
    """A reply to a message was stored or sent."""

    message_id: str
    reply_id: str


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
    """A settlement was refused because the lease had ended."""

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
class MessagesSetAside(MailboxEvent):
    """Records that cannot be leased were moved out of the queue."""

    count: int
