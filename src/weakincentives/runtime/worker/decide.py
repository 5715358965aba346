"""What becomes of an attempt: pure decisions, from facts to an outcome.

Nothing here talks to a mailbox, reads a clock or changes anything. `settle` carries out what is
decided here.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from weakincentives.adapters.errors import RateLimitError, VisibilityExpansionRequired
from weakincentives.errors import WinkError
from weakincentives.runtime.budget import BudgetExceededError, DeadlineExceededError
from weakincentives.runtime.mailbox.errors import (
    MailboxConnectionError,
    NoRoomError,
    ReceiptHandleExpiredError,
)
from weakincentives.runtime.mailbox.limits import is_number

from .errors import RetryAfter, TimeLimitExceededError

__all__ = [
    "ABANDON",
    "ACKNOWLEDGE",
    "DROP",
    "REMOVE",
    "RUN",
    "SETTLED",
    "SKIP",
    "TAKEN",
    "TRANSPORT_ERRORS",
    "Abandon",
    "Acknowledge",
    "Counts",
    "Crash",
    "Drop",
    "Ending",
    "Fail",
    "GiveBack",
    "Outcome",
    "PutOff",
    "Remove",
    "RepeatedCrashError",
    "Reply",
    "Retry",
    "Run",
    "Settled",
    "Skip",
    "Taken",
    "TellSender",
    "Thresholds",
    "ToDeadLetters",
    "after_cancel",
    "after_dead_letter",
    "after_error_reply_failed",
    "after_failure",
    "after_refusal",
    "after_retry_after",
    "after_return",
    "after_unsent",
    "asked_delay",
    "at_deadline",
    "at_time_limit",
    "before_run",
    "crashes",
    "is_given_up",
    "is_worth_repeating",
    "most_put_off",
    "must_run_alone",
    "room_for_suspects",
    "when_cut_off",
]

TRANSPORT_ERRORS = (MailboxConnectionError, NoRoomError, OSError)
"""What is nobody's fault and may be over soon."""


class RepeatedCrashError(WinkError):
    """This message was received again and again, and no worker lived to say what became of it."""


class Ending(Enum):
    """How a job ended that is to be answered."""

    RETURNED = "returned"
    FAILED = "failed"
    DEAD_LETTERED = "dead-lettered"


# --- outcomes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Run:
    """Call the handler."""


@dataclass(frozen=True, slots=True)
class Skip:
    """Acknowledge without running: nobody waits for the reply any more."""


@dataclass(frozen=True, slots=True)
class Acknowledge:
    """Acknowledge, with the next receive if there is one."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Acknowledge although a caller waits for a reply that will not come."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Acknowledge and drop the result: the caller has cancelled the job."""


@dataclass(frozen=True, slots=True)
class Reply:
    """Send the answer, then acknowledge."""

    value: Any
    ending: Ending = Ending.RETURNED


@dataclass(frozen=True, slots=True)
class Fail:
    """Treat the attempt as failed with this error."""

    error: BaseException
    readable: bool = True
    """Whether the body can be decoded."""


@dataclass(frozen=True, slots=True)
class TellSender:
    """Make an error reply and answer with it."""

    dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class Retry:
    """Give the message back as failed, to be delivered again after the delay."""

    delay: float


@dataclass(frozen=True, slots=True)
class PutOff:
    """Give the message back because its handler asked to have it again after the delay."""

    delay: float


@dataclass(frozen=True, slots=True)
class GiveBack:
    """Give the message back as if it had not been received, to be delivered after the delay."""

    delay: float = 0.0


@dataclass(frozen=True, slots=True)
class ToDeadLetters:
    """Send the message to the dead letters."""


@dataclass(frozen=True, slots=True)
class Abandon:
    """Say nothing more for the message: its lease was lost."""


@dataclass(frozen=True, slots=True)
class Crash:
    """Let the lease run out, as if the worker had died: its process is short of something."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Drop the result: the attempt was settled, or is being settled, by another thread or task."""


@dataclass(frozen=True, slots=True)
class Settled:
    """Do nothing: a step that seemed to fail has settled the message, or may have."""


Outcome: TypeAlias = (
    Run
    | Skip
    | Acknowledge
    | Remove
    | Drop
    | Reply
    | Fail
    | TellSender
    | Retry
    | PutOff
    | GiveBack
    | ToDeadLetters
    | Abandon
    | Crash
    | Taken
    | Settled
)

RUN, SKIP, ACKNOWLEDGE, REMOVE, DROP = Run(), Skip(), Acknowledge(), Remove(), Drop()
ABANDON, CRASH, TAKEN, SETTLED = Abandon(), Crash(), Taken(), Settled()


# --- a message's past -----------------------------------------------------------------------


class Counts(NamedTuple):
    """What the store knows of a message's past."""

    deliveries: int
    nacks: int | None
    """None where the backend does not count them."""


class Thresholds(NamedTuple):
    """How much of it a dead-letter policy allows."""

    max_deliveries: int
    absolute_max: int
    has_excluded: bool = False
    """Some errors are retried beyond ``max_deliveries``."""


def crashes(counts: Counts) -> int:
    """Return how many workers went silent with the message in hand, as far as is known."""
    return counts.deliveries - 1 - (counts.nacks or 0)


def must_run_alone(counts: Counts, thresholds: Thresholds) -> bool:
    """Return whether a message that may have killed its workers runs while nothing else does.

    It is a dead letter after two more crashes: one of them may be that of a job in another thread,
    while this one was in hand but did not run yet.
    """
    crashed = crashes(counts)
    enough = max(1, thresholds.max_deliveries - 2)
    return crashed >= enough and not is_given_up(counts, thresholds)


def room_for_suspects(crashes: int, places: int) -> int:
    """Return how many messages that crashed so often, or more often, may run at once."""
    # After one crash all may: most often the worker was simply killed.
    return places if crashes < 2 else max(1, places // 8 ** (crashes - 1))


def is_given_up(counts: Counts, thresholds: Thresholds) -> bool:
    """Return whether a message goes to the dead letters before anybody looks into it."""
    if counts.deliveries > thresholds.absolute_max:
        return True
    if counts.nacks is None:
        return not thresholds.has_excluded and counts.deliveries > thresholds.max_deliveries
    return crashes(counts) >= thresholds.max_deliveries


def most_put_off(thresholds: Thresholds | None, *, counted_apart: bool) -> float:
    """Return the last delivery after which a message can be put off.

    Where the backend does not count put-offs apart, they use up the deliveries of the policy, and
    the next delivery would be given up unread, as if its workers had crashed.
    """
    if thresholds is None:
        return math.inf
    if counted_apart or thresholds.has_excluded:
        return thresholds.absolute_max - 1
    return thresholds.max_deliveries - 1


# --- decisions, in the order of an attempt's life -------------------------------------------


def before_run(
    *,
    crashed: int | None = None,
    gone: bool = False,
    error: Exception | None = None,
    readable: bool = True,
    pause: float = 0.0,
) -> Run | Skip | Retry | Fail:
    """Decide whether a message is run.

    ``crashed`` is how many times it was received if that was too often, else None. ``gone`` says
    that its sender no longer waits, ``error`` what was raised when the sender was looked for.
    """
    if crashed is not None:
        text = f"received {crashed} times, and most of its workers died"
        return Fail(RepeatedCrashError(text))
    if isinstance(error, TRANSPORT_ERRORS):
        return Retry(pause)  # not the job's failure
    if error is not None:  # such as a reply_to that cannot be resolved
        return Fail(error, readable)
    return SKIP if gone else RUN


def after_return(value: Any, *, lost: bool, answers: bool) -> Abandon | Reply | Acknowledge:
    """Decide after a handler has returned; ``answers`` says whether its sender gets the value."""
    if lost:
        return ABANDON
    return Reply(value) if answers else ACKNOWLEDGE


def after_cancel(*, lost: bool, answered: bool) -> Abandon | Acknowledge | Drop:
    """Decide about an attempt that the caller has cancelled, whatever its handler made of that.

    ``answered`` says that the handler's own reply has acknowledged the message.
    """
    if lost:
        return ABANDON
    return ACKNOWLEDGE if answered else DROP


def at_time_limit(seconds: float, cause: BaseException | None = None) -> Fail:
    """Decide about an attempt whose handler ran for longer than this.

    ``cause`` is what the handler raised since. Whatever it made of the end of its time, it failed.
    """
    error = TimeLimitExceededError(f"the handler ran for longer than its time limit, {seconds:g} s")
    error.__cause__ = cause
    return Fail(error)


def asked_delay(error: BaseException, longest: float = math.inf) -> float | None:
    """Return the seconds after which an error asks for the message again, None if it does not."""
    match error:
        case RetryAfter(seconds=seconds):
            return seconds
        case RateLimitError(retry_after=seconds) if is_number(seconds) and seconds >= 0:
            return min(seconds, longest)  # the provider does not know what the mailbox can do
        case BaseExceptionGroup(exceptions=errors):
            return _longest_of(asked_delay(each, longest) for each in errors)
    return None


def _longest_of(delays: Iterable[float | None]) -> float | None:
    """Return the longest of the delays, None if one is None: then something else failed too."""
    longest = 0.0
    for delay in delays:
        if delay is None:
            return None
        longest = max(longest, delay)
    return longest


def after_retry_after(
    error: BaseException,
    delay: float,
    *,
    lost: bool = False,
    answered: bool = False,
    deliveries: int = 1,
    most: float = math.inf,
    left: float = math.inf,
    age: float = 0.0,
    max_put_off: float,
) -> Abandon | PutOff | Fail:
    """Decide after a handler has asked for its message again.

    ``most`` is the last delivery after which it can be put off, ``left`` how long the caller still
    waits, ``age`` how long ago the message was sent.
    ``answered`` says that the handler's own reply has acknowledged the message.
    """
    if lost:
        return ABANDON
    if delay >= left:
        text = f"asked to be delivered again after {delay:g} s; its reply expires in {left:.3g} s"
        late = DeadlineExceededError(text)
        late.__cause__ = error
        return Fail(late)
    if answered or age > max_put_off or deliveries > most:
        return Fail(error)
    return PutOff(delay)


def after_failure(
    error: BaseException,
    deliveries: int,
    *,
    lost: bool = False,
    answered: bool = False,
    readable: bool = True,
    verdict: bool | None,
    absolute_max: int = 100,
    can_tell: bool,
    delay: float,
) -> Abandon | Acknowledge | Retry | TellSender | ToDeadLetters:
    """Decide after an error.

    ``verdict`` is what the dead-letter policy says, None without one. ``readable`` is False for
    a body that cannot be decoded. ``can_tell`` says whether the sender can be sent the error,
    ``delay`` how long a retry waits. ``answered`` says that the handler's own reply has
    acknowledged the message.
    """
    if lost:
        return ABANDON
    if answered:
        return ACKNOWLEDGE  # nothing is left that could be tried again
    always_retried = isinstance(error, VisibilityExpansionRequired)
    if verdict is not None:
        pointless = (
            not readable
            or isinstance(error, BudgetExceededError | DeadlineExceededError | RepeatedCrashError)
            or deliveries >= absolute_max
        )
        return ToDeadLetters() if pointless or (verdict and not always_retried) else Retry(delay)
    # An unreadable body may be one of a newer version: another worker may know how to read it.
    return TellSender() if can_tell and readable and not always_retried else Retry(delay)


def after_dead_letter(
    *, sent: bool, can_tell: bool, awaited: bool, delay: float
) -> Retry | TellSender | Remove | Acknowledge:
    """Decide after the dead letter was sent, or could not be.

    ``awaited`` says whether a caller waits for a reply to this message.
    """
    if not sent:
        return Retry(delay)
    return TellSender(dead_lettered=True) if can_tell else _without_reply(awaited)


def after_error_reply_failed(
    *, dead_lettered: bool, awaited: bool, delay: float
) -> Retry | Remove | Acknowledge:
    """Decide after the user's ``error_reply`` has raised."""
    # The evidence of a dead letter is safe: running the job again would only make another one.
    return _without_reply(awaited) if dead_lettered else Retry(delay)


def after_unsent(
    error: Exception,
    *,
    ending: Ending,
    awaited: bool,
    in_doubt: bool,
    lost: bool,
    has_policy: bool,
    delay: float,
) -> Settled | Abandon | Remove | Acknowledge | GiveBack | Retry | Fail:
    """Decide after an answer could not be sent."""
    if isinstance(error, ReceiptHandleExpiredError):
        # A reply that was cut off has acknowledged the message, unless its time was over.
        return SETTLED if in_doubt and awaited and not lost else ABANDON
    if ending is Ending.DEAD_LETTERED:
        return _without_reply(awaited)
    if isinstance(error, NoRoomError):
        return GiveBack(delay)  # no fault of the job's, and it will be over
    is_told_nothing = ending is Ending.FAILED or isinstance(error, TRANSPORT_ERRORS)
    return Retry(delay) if is_told_nothing and not has_policy else Fail(error)


def after_refusal(*, in_doubt: bool, lost: bool = False) -> Settled | Abandon:
    """Decide after the mailbox has refused to settle a message."""
    # After a step that was cut off the refusal may mean that the message is settled already.
    return SETTLED if in_doubt and not lost else ABANDON


def is_worth_repeating(*, left: float, lost: bool, stopping: bool) -> bool:
    """Return whether a step that did not reach its mailbox is tried again."""
    return left >= 0 and not lost and not stopping


def at_deadline(*, ended: bool) -> Acknowledge | GiveBack:
    """Decide at the deadline of a shutdown."""
    return ACKNOWLEDGE if ended else GiveBack()


def when_cut_off(*, begun: bool, from_outside: bool) -> Retry | GiveBack:
    """Decide about the attempt at work when its thread is interrupted."""
    # What ended the loop itself may end every loop that takes it, so it counts as a failure.
    return Retry(0.0) if begun and not from_outside else GiveBack()


def _without_reply(awaited: bool) -> Remove | Acknowledge:
    # A caller who waits for a reply stops the usual way of acknowledging.
    return REMOVE if awaited else ACKNOWLEDGE
