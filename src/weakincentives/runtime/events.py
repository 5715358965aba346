"""What loops tell a Dispatcher: small frozen facts, after they have become true."""

from dataclasses import dataclass

from weakincentives.dispatch import Dispatcher, InProcessDispatcher

__all__ = [
    "DeadLetterReplayed",
    "Dispatcher",
    "InProcessDispatcher",
    "JobAbandoned",
    "JobFailed",
    "JobFinished",
    "JobGivenBack",
    "JobSkipped",
    "JobStarted",
    "LoopEvent",
    "MailboxUnreachable",
    "MessageDeadLettered",
]


@dataclass(frozen=True, slots=True)
class LoopEvent:
    """Something happened in the loop that serves the mailbox of this name."""

    mailbox: str


@dataclass(frozen=True, slots=True)
class JobStarted(LoopEvent):
    """A handler was called."""

    message_id: str
    delivery_count: int


@dataclass(frozen=True, slots=True)
class JobFinished(LoopEvent):
    """A handler returned."""

    message_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class JobFailed(LoopEvent):
    """A message could not be handled; the reference is what the sender was told and the log has."""

    message_id: str
    error_type: str
    reference: str
    outcome: str
    """``retry``, ``told`` (the sender got the error) or ``dead-letter``."""


@dataclass(frozen=True, slots=True)
class JobSkipped(LoopEvent):
    """A message was acknowledged without running it: nobody waits for its reply any more."""

    message_id: str


@dataclass(frozen=True, slots=True)
class JobGivenBack(LoopEvent):
    """A message was given back because the loop ends."""

    message_id: str


@dataclass(frozen=True, slots=True)
class JobAbandoned(LoopEvent):
    """The lease was lost: nothing more is replied or acknowledged for this delivery."""

    message_id: str


@dataclass(frozen=True, slots=True)
class MessageDeadLettered(LoopEvent):
    """A message was moved to the dead letters."""

    message_id: str
    dead_letter_id: str
    error_type: str
    delivery_count: int


@dataclass(frozen=True, slots=True)
class MailboxUnreachable(LoopEvent):
    """A receive failed; the loop looks again after the pause."""

    error_type: str
    pause: float


@dataclass(frozen=True, slots=True)
class DeadLetterReplayed(LoopEvent):
    """A dead letter of this mailbox was sent again."""

    dead_letter_id: str
    message_id: str
