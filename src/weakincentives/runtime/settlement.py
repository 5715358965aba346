"""What becomes of a message that could not be handled: a decision, and no I/O."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from weakincentives.adapters.errors import VisibilityExpansionRequired
from weakincentives.errors import WinkError

from .backoff import Backoff
from .deadline import BudgetExceededError, DeadlineExceededError

__all__ = [
    "Counts",
    "RepeatedCrashError",
    "Retry",
    "Settlement",
    "TellAndAck",
    "Thresholds",
    "ToDeadLetters",
    "after_failure",
    "unread",
]


class RepeatedCrashError(WinkError):
    """This message was received again and again, and no worker lived to say what became of it."""


@dataclass(frozen=True, slots=True)
class TellAndAck:
    """Reply with the error, then acknowledge."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Give the message back, to be received again after the delay."""

    delay: float


@dataclass(frozen=True, slots=True)
class ToDeadLetters:
    """Move the message to the dead letters."""


Settlement: TypeAlias = TellAndAck | Retry | ToDeadLetters


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


def unread(counts: Counts, thresholds: Thresholds) -> bool:
    """Return whether a message goes to the dead letters before anybody looks into it."""
    if counts.deliveries > thresholds.absolute_max:
        return True
    if counts.nacks is None:
        return not thresholds.has_excluded and counts.deliveries > thresholds.max_deliveries
    crashes = counts.deliveries - 1 - counts.nacks
    return crashes >= thresholds.max_deliveries


def after_failure(
    error: BaseException,
    deliveries: int,
    *,
    readable: bool = True,
    verdict: bool | None,
    absolute_max: int = 100,
    can_tell: bool,
    backoff: Backoff,
    draw: Callable[[], float] = random.random,
) -> Settlement:
    """Decide what becomes of a message after this error.

    ``verdict`` is what the dead-letter policy says, None without one. ``readable`` is False for
    a body that cannot be decoded. ``can_tell`` says whether the sender can be sent the error.
    """
    retry = Retry(backoff.delay(deliveries, draw))
    always_retried = isinstance(error, VisibilityExpansionRequired)
    if verdict is not None:
        pointless = (
            not readable
            or isinstance(error, BudgetExceededError | DeadlineExceededError | RepeatedCrashError)
            or deliveries >= absolute_max
        )
        return ToDeadLetters() if pointless or (verdict and not always_retried) else retry
    # An unreadable body may be one of a newer version: another worker may know how to read it.
    return TellAndAck() if can_tell and readable and not always_retried else retry
