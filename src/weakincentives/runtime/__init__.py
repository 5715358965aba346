"""Mailboxes, and the loops that serve them."""

import importlib
from typing import TYPE_CHECKING, Any

from weakincentives.dispatch import Dispatcher, InProcessDispatcher
from weakincentives.errors import WinkError

from .backoff import Backoff
from .deadline import Budget, BudgetExceededError, Deadline, DeadlineExceededError, Usage
from .dlq import DeadLetter, DLQConsumer, DLQPolicy, replay_dead_letters
from .health import HealthServer
from .heartbeat import Heartbeat
from .lease_extender import (
    Lease,
    LeaseExtender,
    LeaseExtenderConfig,
    LeaseLostError,
    current_lease,
)
from .lifecycle import LoopGroup, Runnable
from .mailbox import (
    Capabilities,
    CollectingMailbox,
    CompositeResolver,
    FakeMailbox,
    ImmediateReply,
    InMemoryMailbox,
    InMemoryMailboxFactory,
    InMemoryReplyStore,
    InvalidParameterError,
    Limits,
    Mailbox,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxError,
    MailboxFactory,
    MailboxFullError,
    MailboxResolutionError,
    MailboxResolver,
    MailboxStats,
    Message,
    MessageFinalizedError,
    NoReplyChannelError,
    NullMailbox,
    PayloadTooLargeError,
    Peeked,
    ReceiptHandleExpiredError,
    RegistryResolver,
    Reply,
    ReplyAlreadySentError,
    ReplyCancelledError,
    ReplyChannel,
    ReplyEntry,
    ReplyError,
    ReplyExpectedError,
    ReplyNotAvailableError,
    ReplyState,
    ReplyStore,
    ReplyTimeoutError,
    SerializationError,
    UnsupportedOperationError,
)
from .main_loop import MainLoop, MainLoopConfig, MainLoopRequest, MainLoopResult
from .session import Session
from .settlement import RepeatedCrashError
from .shutdown import ShutdownCoordinator
from .watchdog import Watchdog
from .worker import Failure, Worker, WorkerConfig

if TYPE_CHECKING:
    from weakincentives.contrib.mailbox import DynamoDBReplyStore as DynamoDBReplyStore
    from weakincentives.contrib.mailbox import RedisMailbox as RedisMailbox
    from weakincentives.contrib.mailbox import RedisMailboxFactory as RedisMailboxFactory
    from weakincentives.contrib.mailbox import RedisReplyStore as RedisReplyStore
    from weakincentives.contrib.mailbox import SQLiteMailbox as SQLiteMailbox
    from weakincentives.contrib.mailbox import SQLiteMailboxFactory as SQLiteMailboxFactory
    from weakincentives.contrib.mailbox import SQLiteReplyStore as SQLiteReplyStore
    from weakincentives.contrib.mailbox import SQSMailbox as SQSMailbox
    from weakincentives.contrib.mailbox import SQSMailboxFactory as SQSMailboxFactory

__all__ = [
    "Backoff",
    "Budget",
    "BudgetExceededError",
    "Capabilities",
    "CollectingMailbox",
    "CompositeResolver",
    "DLQConsumer",
    "DLQPolicy",
    "DeadLetter",
    "Deadline",
    "DeadlineExceededError",
    "Dispatcher",
    "Failure",
    "FakeMailbox",
    "HealthServer",
    "Heartbeat",
    "ImmediateReply",
    "InMemoryMailbox",
    "InMemoryMailboxFactory",
    "InMemoryReplyStore",
    "InProcessDispatcher",
    "InvalidParameterError",
    "Lease",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseLostError",
    "Limits",
    "LoopGroup",
    "Mailbox",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFactory",
    "MailboxFullError",
    "MailboxResolutionError",
    "MailboxResolver",
    "MailboxStats",
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
    "Message",
    "MessageFinalizedError",
    "NoReplyChannelError",
    "NullMailbox",
    "PayloadTooLargeError",
    "Peeked",
    "ReceiptHandleExpiredError",
    "RegistryResolver",
    "RepeatedCrashError",
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
    "Runnable",
    "SerializationError",
    "Session",
    "ShutdownCoordinator",
    "UnsupportedOperationError",
    "Usage",
    "Watchdog",
    "WinkError",
    "Worker",
    "WorkerConfig",
    "current_lease",
    "replay_dead_letters",
]

_BACKENDS = "weakincentives.contrib.mailbox"


def __getattr__(name: str) -> Any:
    # Backends are imported when they are first used, so that nobody needs all of them. They are
    # not in __all__ either: an import of * would import them all.
    if not name.startswith("_"):
        backends = importlib.import_module(_BACKENDS)
        if name in backends.__all__:
            return getattr(backends, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
