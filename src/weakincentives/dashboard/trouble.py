"""What follows from several looks at a queue: its rate, when it will be empty, what is wrong."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

from weakincentives.runtime.mailbox import MailboxStats

__all__ = ["Badge", "Look", "QueueVerdict", "Severity", "verdict_of"]

RATE_SECONDS = 30.0
"""Over how many seconds a rate is measured."""
STUCK_SECONDS = 60.0
"""For how long nothing must have moved before a queue is said to make no progress."""
UNSERVED_SECONDS = 20.0
"""For how long nothing must have moved before a queue without workers is said to have no consumer:
a program may receive from it without a loop, and tell nobody."""
STUCK_LOOKS = 4
"""How many looks must agree on that."""
SAME_MESSAGE = 2.0
"""By how many seconds the age of the oldest message may differ from the time that has passed."""


class Look(NamedTuple):
    """What one look at a queue has found, and when by the monotonic clock."""

    at: float
    stats: MailboxStats


class Badge(StrEnum):
    """A short word beside the name of a queue."""

    UNREACHABLE = "cannot be read"
    NO_CONSUMER = "no consumer"
    NO_PROGRESS = "no progress"
    LEASE_OVER = "lease over"
    PAUSED = "paused"
    DEAD_LETTERS = "dead letters"
    UNREADABLE = "unreadable records"
    GROWING = "growing"


class Severity(IntEnum):
    """How urgently somebody should look; the overview begins with the highest."""

    QUIET = 0
    BUSY = 1
    NOTICE = 2
    WARNING = 3
    ALARM = 4


SEVERITIES = {
    Badge.UNREACHABLE: Severity.ALARM,
    Badge.NO_CONSUMER: Severity.ALARM,
    Badge.NO_PROGRESS: Severity.ALARM,
    Badge.LEASE_OVER: Severity.WARNING,
    Badge.PAUSED: Severity.WARNING,
    Badge.DEAD_LETTERS: Severity.WARNING,
    Badge.UNREADABLE: Severity.WARNING,
    Badge.GROWING: Severity.NOTICE,
}


@dataclass(frozen=True, slots=True)
class QueueVerdict:
    """Where a queue is heading."""

    change: float | None
    """By how many messages it grows each second, pending and delayed ones; None if not known."""
    drain_seconds: float | None
    """After how many seconds nothing waits any more if it goes on like this."""
    stuck_seconds: float | None
    """For how long its oldest message has not moved, although it could be received."""
    badges: tuple[Badge, ...]

    @property
    def severity(self) -> Severity:
        """The severity of its worst badge."""
        return max((SEVERITIES[badge] for badge in self.badges), default=Severity.QUIET)


def verdict_of(
    looks: Sequence[Look],
    *,
    has_letters: bool = False,
    is_reachable: bool = True,
    places: int | None = None,
    is_lease_over: bool = False,
) -> QueueVerdict:
    """Return what follows from the looks of the last minutes, oldest first.

    ``places`` is how many jobs of the queue workers run at once; None if that is not known.
    ``is_lease_over`` tells whether a worker goes on with a message that it has lost.
    """
    change = _change(looks)
    stats = looks[-1].stats if looks else None
    stuck = _stuck(looks)
    badges = []
    if not is_reachable:
        badges.append(Badge.UNREACHABLE)
    if is_lease_over:
        badges.append(Badge.LEASE_OVER)
    if stats is not None and stats.paused:
        badges.append(Badge.PAUSED)
    elif stuck is not None and not has_letters:
        if places == 0:
            badges.append(Badge.NO_CONSUMER)
        elif stuck >= STUCK_SECONDS:
            badges.append(Badge.NO_PROGRESS)
    if has_letters and stats is not None and stats.total:
        badges.append(Badge.DEAD_LETTERS)
    if stats is not None and stats.unreadable:
        badges.append(Badge.UNREADABLE)
    if change is not None and change > 0 and _is_growing(looks):
        badges.append(Badge.GROWING)
    return QueueVerdict(change, _drain_seconds(stats, change), stuck, tuple(badges))


def _drain_seconds(stats: MailboxStats | None, change: float | None) -> float | None:
    if stats is None or not stats.pending or change is None or change >= 0:
        return None
    return stats.pending / -change


def _waiting(look: Look) -> int:
    return look.stats.pending + look.stats.delayed


def _recent(looks: Sequence[Look], seconds: float) -> Sequence[Look]:
    if not looks:
        return looks
    since = looks[-1].at - seconds
    return [look for look in looks if look.at >= since]


def _change(looks: Sequence[Look]) -> float | None:
    recent = _recent(looks, RATE_SECONDS)
    if len(recent) < 2 or recent[-1].at <= recent[0].at:
        return None
    first, last = recent[0], recent[-1]
    return (_waiting(last) - _waiting(first)) / (last.at - first.at)


def _is_growing(looks: Sequence[Look]) -> bool:
    """Whether it has grown in both halves of the time: a single burst is no verdict."""
    recent = _recent(looks, RATE_SECONDS)
    if len(recent) < 3 or recent[-1].at - recent[0].at < RATE_SECONDS / 2:
        return False
    middle = recent[len(recent) // 2]
    return _waiting(recent[0]) < _waiting(middle) < _waiting(recent[-1])


def _stuck(looks: Sequence[Look]) -> float | None:
    """Return for how long the same message has been the oldest, while no worker held any.

    Consumers take the oldest first, so that a queue with one that works cannot look like this.
    """
    if not looks or not _is_waiting(looks[-1]):
        return None
    last = looks[-1]
    since, count = last, 1
    for look in reversed(looks[:-1]):
        if not _is_waiting(look) or look.stats.pending > since.stats.pending:
            break
        if abs((_age(last) - _age(look)) - (last.at - look.at)) > SAME_MESSAGE:
            break
        since, count = look, count + 1
    for_long = last.at - since.at
    return for_long if for_long >= UNSERVED_SECONDS and count >= STUCK_LOOKS else None


def _is_waiting(look: Look) -> bool:
    stats = look.stats
    return stats.pending > 0 and stats.in_flight == 0 and stats.oldest_age_seconds is not None


def _age(look: Look) -> float:
    return look.stats.oldest_age_seconds or 0.0
