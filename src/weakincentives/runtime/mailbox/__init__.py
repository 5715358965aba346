"""Durable, typed mailboxes with SQS semantics."""

from weakincentives.errors import WinkError

from .api import Mailbox, MailboxStats
from .errors import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxError,
    MailboxFullError,
    MailboxResolutionError,
    MessageFinalizedError,
    NoReplyChannelError,
    PayloadTooLargeError,
    ReceiptHandleExpiredError,
    ReplyAlreadySentError,
    ReplyCancelledError,
    ReplyError,
    ReplyExpectedError,
    ReplyNotAvailableError,
    ReplyTimeoutError,
    SerializationError,
    UnsupportedOperationError,
)
from .limits import Capabilities, Limits
from .memory import InMemoryMailbox, InMemoryMailboxFactory
from .memory_replies import InMemoryReplyStore
from .message import Message, Peeked
from .replies import Reply, ReplyChannel
from .reply_table import ReplyEntry, ReplyState, ReplyStore
from .resolver import CompositeResolver, MailboxFactory, MailboxResolver, RegistryResolver
from .testing import CollectingMailbox, FakeMailbox, ImmediateReply, NullMailbox

__all__ = [
    "Capabilities",
    "CollectingMailbox",
    "CompositeResolver",
    "FakeMailbox",
    "ImmediateReply",
    "InMemoryMailbox",
    "InMemoryMailboxFactory",
    "InMemoryReplyStore",
    "InvalidParameterError",
    "Limits",
    "Mailbox",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFactory",
    "MailboxFullError",
    "MailboxResolutionError",
    "MailboxResolver",
    "MailboxStats",
    "Message",
    "MessageFinalizedError",
    "NoReplyChannelError",
    "NullMailbox",
    "PayloadTooLargeError",
    "Peeked",
    "ReceiptHandleExpiredError",
    "RegistryResolver",
    "Reply",
    "ReplyAlreadySentError",
    "ReplyCancelledError",
    "ReplyChannel",
    "ReplyEntry",
    "ReplyError",
    "ReplyExpectedError",
    "ReplyNotAvailableError",
    "ReplyState",
    "ReplyStore",
    "ReplyTimeoutError",
    "SerializationError",
    "UnsupportedOperationError",
    "WinkError",
]
