"""Mailboxes, and the loops that serve them."""

import importlib
from typing import TYPE_CHECKING, Any

from weakincentives.dispatch import Dispatcher, InProcessDispatcher
from weakincentives.errors import WinkError
from weakincentives.runtime.agent.main_loop import (
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
)
from weakincentives.runtime.agent.session import Session
from weakincentives.runtime.budget import (
    Budget,
    BudgetExceededError,
    Deadline,
    DeadlineExceededError,
    Usage,
)
from weakincentives.runtime.dead_letters.consumer import DLQConsumer
from weakincentives.runtime.dead_letters.letter import DeadLetter
from weakincentives.runtime.dead_letters.policy import DLQPolicy
from weakincentives.runtime.dead_letters.replay import replay_dead_letters
from weakincentives.runtime.group.group import LoopGroup
from weakincentives.runtime.group.health_server import HealthServer
from weakincentives.runtime.group.runnable import Runnable
from weakincentives.runtime.group.signals import ShutdownCoordinator
from weakincentives.runtime.group.watchdog import Watchdog
from weakincentives.runtime.leases.extender import (
    Lease,
    LeaseExtender,
    LeaseExtenderConfig,
    LeaseLostError,
    current_lease,
)
from weakincentives.runtime.worker.backoff import Backoff
from weakincentives.runtime.worker.decide import RepeatedCrashError
from weakincentives.runtime.worker.errors import (
    JobCancelledError,
    NoCurrentJobError,
    RetryAfter,
    TimeLimitExceededError,
)
from weakincentives.runtime.worker.job import AsyncJob, Job, current_async_job, current_job
from weakincentives.runtime.worker.worker import Failure, Worker, WorkerConfig

from .heartbeat import Heartbeat
from .mailbox import (
    Capabilities,
    CompositeResolver,
    HeldMessage,
    InMemoryMailbox,
    InMemoryMailboxFactory,
    InMemoryReplyStore,
    InvalidParameterError,
    JobState,
    JobStatus,
    Limits,
    LoopInfo,
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
    Part,
    PayloadTooLargeError,
    Peeked,
    QueuePause,
    ReceiptHandleExpiredError,
    ReentrantStepError,
    RegistryResolver,
    Reply,
    ReplyAlreadySentError,
    ReplyCancelledError,
    ReplyChannel,
    ReplyEntry,
    ReplyError,
    ReplyExpectedError,
    ReplyFailedError,
    ReplyNotAvailableError,
    ReplyNotFoundError,
    ReplyState,
    ReplyStore,
    ReplyTimeoutError,
    SerializationError,
    UnsupportedOperationError,
    WorkerInfo,
    as_completed,
    as_completed_async,
)

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
    from weakincentives.runtime.mailbox.testing import CollectingMailbox as CollectingMailbox
    from weakincentives.runtime.mailbox.testing import FakeMailbox as FakeMailbox
    from weakincentives.runtime.mailbox.testing import ImmediateReply as ImmediateReply
    from weakincentives.runtime.mailbox.testing import NullMailbox as NullMailbox

__all__ = [
    "AsyncJob",
    "Backoff",
    "Budget",
    "BudgetExceededError",
    "Capabilities",
    "CompositeResolver",
    "DLQConsumer",
    "DLQPolicy",
    "DeadLetter",
    "Deadline",
    "DeadlineExceededError",
    "Dispatcher",
    "Failure",
    "HealthServer",
    "Heartbeat",
    "HeldMessage",
    "InMemoryMailbox",
    "InMemoryMailboxFactory",
    "InMemoryReplyStore",
    "InProcessDispatcher",
    "InvalidParameterError",
    "Job",
    "JobCancelledError",
    "JobState",
    "JobStatus",
    "Lease",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "LeaseLostError",
    "Limits",
    "LoopGroup",
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
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
    "Message",
    "MessageFinalizedError",
    "NoCurrentJobError",
    "NoReplyChannelError",
    "Part",
    "PayloadTooLargeError",
    "Peeked",
    "QueuePause",
    "ReceiptHandleExpiredError",
    "ReentrantStepError",
    "RegistryResolver",
    "RepeatedCrashError",
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
    "RetryAfter",
    "Runnable",
    "SerializationError",
    "Session",
    "ShutdownCoordinator",
    "TimeLimitExceededError",
    "UnsupportedOperationError",
    "Usage",
    "Watchdog",
    "WinkError",
    "Worker",
    "WorkerConfig",
    "WorkerInfo",
    "as_completed",
    "as_completed_async",
    "current_async_job",
    "current_job",
    "current_lease",
    "replay_dead_letters",
]

_LAZY = ("weakincentives.contrib.mailbox", "weakincentives.runtime.mailbox.testing")


def __getattr__(name: str) -> Any:
    # Backends and test doubles are imported when they are first used, so that no program needs
    # them all. They are not in __all__ either: an import of * would import them all.
    if not name.startswith("_"):
        for home in _LAZY:
            module = importlib.import_module(home)
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
