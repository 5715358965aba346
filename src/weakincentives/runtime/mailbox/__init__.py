"""Durable, typed mailboxes with SQS semantics."""

import importlib
from typing import TYPE_CHECKING, Any

from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox.memory.mailbox import InMemoryMailbox, InMemoryMailboxFactory
from weakincentives.runtime.mailbox.memory.replies import InMemoryReplyStore
from weakincentives.runtime.mailbox.replies.channel import ReplyChannel
from weakincentives.runtime.mailbox.replies.completion import as_completed, as_completed_async
from weakincentives.runtime.mailbox.replies.parts import Part
from weakincentives.runtime.mailbox.replies.reply import Reply
from weakincentives.runtime.mailbox.replies.status import JobState, JobStatus
from weakincentives.runtime.mailbox.seam.reply_table import ReplyEntry, ReplyState, ReplyStore

from .api import Mailbox, MailboxStats
from .capabilities import Capabilities
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
    ReentrantStepError,
    ReplyAlreadySentError,
    ReplyCancelledError,
    ReplyError,
    ReplyExpectedError,
    ReplyFailedError,
    ReplyNotAvailableError,
    ReplyNotFoundError,
    ReplyTimeoutError,
    SerializationError,
    UnsupportedOperationError,
)
from .limits import Limits
from .message import Message, Peeked
from .pauses import QueuePause
from .resolver import CompositeResolver, MailboxFactory, MailboxResolver, RegistryResolver
from .workers import HeldMessage, LoopInfo, WorkerInfo

if TYPE_CHECKING:
    from .testing import CollectingMailbox as CollectingMailbox
    from .testing import FakeMailbox as FakeMailbox
    from .testing import ImmediateReply as ImmediateReply
    from .testing import NullMailbox as NullMailbox

__all__ = [
    "Capabilities",
    "CompositeResolver",
    "HeldMessage",
    "InMemoryMailbox",
    "InMemoryMailboxFactory",
    "InMemoryReplyStore",
    "InvalidParameterError",
    "JobState",
    "JobStatus",
    "Limits",
    "LoopInfo",
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
    "Part",
    "PayloadTooLargeError",
    "Peeked",
    "QueuePause",
    "ReceiptHandleExpiredError",
    "ReentrantStepError",
    "RegistryResolver",
    "Reply",
    "ReplyAlreadySentError",
    "ReplyCancelledError",
    "ReplyChannel",
    "ReplyEntry",
    "ReplyError",
    "ReplyExpectedError",
    "ReplyFailedError",
    "ReplyNotAvailableError",
    "ReplyNotFoundError",
    "ReplyState",
    "ReplyStore",
    "ReplyTimeoutError",
    "SerializationError",
    "UnsupportedOperationError",
    "WinkError",
    "WorkerInfo",
    "as_completed",
    "as_completed_async",
]

_DOUBLES = "weakincentives.runtime.mailbox.testing"


def __getattr__(name: str) -> Any:
    # Test doubles can be imported from here too, but programs that use none do not load them.
    if name in ("CollectingMailbox", "FakeMailbox", "ImmediateReply", "NullMailbox"):
        return getattr(importlib.import_module(_DOUBLES), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
