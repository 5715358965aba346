"""The events that loops publish to a Dispatcher, each after it has happened."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weakincentives.dispatch import Dispatcher, InProcessDispatcher

__all__ = [
    "DeadLetterProcessed",
    "DeadLetterReplayed",
    "Dispatcher",
    "InProcessDispatcher",
    "JobAbandoned",
    "JobCancelled",
    "JobFailed",
    "JobFinished",
    "JobGivenBack",
    "JobPutOff",
    "JobSkipped",
    "JobStarted",
    "LoopEvent",
    "MailboxUnreachable",
    "MessageDeadLettered",
]


@dataclass(frozen=True, slots=True)
class LoopEvent:
    """An event of the loop that serves the mailbox of this name."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class JobStarted(LoopEvent):
    """A handler was called."""

    message_id: str
    delivery_count: int
    attributes: Mapping[str, str] | None = field(default=None, compare=False)
    """What the sender attached to the message."""


@dataclass(frozen=True, slots=True)
class JobFinished(LoopEvent):
    """A handler returned."""

    message_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobFailed(LoopEvent):
    """A handler failed; ``reference`` appears in the error reply and in the log."""

    message_id: str
    error_type: str
    reference: str
    outcome: str
    """``retry``, ``told`` (an error reply was sent), ``dead-letter``, or ``answered`` (the handler
    had replied before it failed, so it is not tried again)."""
    seconds: float | None = field(default=None, compare=False)
    """How long the handler ran; None if it was not called."""


@dataclass(frozen=True, slots=True)
class JobSkipped(LoopEvent):
    """A message was acknowledged without running it, because its reply is no longer awaited."""

    message_id: str


@dataclass(frozen=True, slots=True)
class JobGivenBack(LoopEvent):
    """A message was put back without having been run to its end; that does not count as a try."""

    message_id: str


@dataclass(frozen=True, slots=True)
class JobPutOff(LoopEvent):
    """A handler asked to have its message again after ``seconds``; that is not a failure."""

    message_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobCancelled(LoopEvent):
    """A job was cancelled by its caller, and its result, if there is one, was dropped."""

    message_id: str


@dataclass(frozen=True, slots=True)
class JobAbandoned(LoopEvent):
    """What a handler returned was dropped: its lease was lost, or another thread settled it."""

    message_id: str


@dataclass(frozen=True, slots=True)
class MessageDeadLettered(LoopEvent):
    """A message was given up and its dead letter was sent."""

    message_id: str
    dead_letter_id: str
    error_type: str
    delivery_count: int
    to: str = field(default="", compare=False)
    """The mailbox that the dead letter was sent to."""


@dataclass(frozen=True, slots=True)
class MailboxUnreachable(LoopEvent):
    """A receive failed, or keeps failing; it is tried again after ``pause`` seconds."""

    error_type: str
    pause: float


@dataclass(frozen=True, slots=True)
class DeadLetterProcessed(LoopEvent):
    """The handler of a `DLQConsumer` returned; ``mailbox`` is that of the dead letters."""

    message_id: str
    """The id of the message that was given up."""
    source: str
    """The mailbox that it came from."""
    error_type: str
    age_seconds: float
    """How long the letter had been there."""
    seconds: float


@dataclass(frozen=True, slots=True)
class DeadLetterReplayed(LoopEvent):
    """A dead letter of this mailbox was replayed."""

    dead_letter_id: str
    message_id: str
