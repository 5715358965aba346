"""The page with all queues, those first that need somebody."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from .history import FINE, History
from .sparkline import sparkline
from .survey import Survey, SurveyReading
from .trouble import Severity

__all__ = ["OverviewPage", "QueueRow", "overview"]

V = TypeVar("V")

PAGE_SIZE = 50
LONGEST_FILTER = 200


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One queue on the overview."""

    name: str
    severity: str
    badges: tuple[str, ...]
    pending: int | None
    in_flight: int | None
    delayed: int | None
    oldest_age_seconds: float | None
    change_per_second: float | None
    drain_seconds: float | None
    stuck_seconds: float | None
    places: int | None
    """How many of its jobs workers run at once."""
    counted_seconds_ago: float | None
    has_letters: bool
    error: str | None
    line: str
    """The messages that waited in the last hour, as points of a line."""


@dataclass(frozen=True, slots=True)
class OverviewPage:
    """What the overview shows."""

    queues: list[QueueRow]
    find: str
    sort: str
    page: int
    pages: int
    total: int
    """How many queues match the filter."""
    all: int
    alarms: int
    pending: int
    in_flight: int
    delayed: int
    letters: int
    left_out: int


def _by_trouble(reading: SurveyReading) -> tuple[Any, ...]:
    stats = reading.stats
    waiting = 0 if stats is None else stats.pending
    return (-reading.verdict.severity, -(waiting > 0), -_oldest(reading), -waiting, reading.name)


def _oldest(reading: SurveyReading) -> float:
    stats = reading.stats
    return 0.0 if stats is None else stats.oldest_age_seconds or 0.0


def _pending(reading: SurveyReading) -> int:
    return 0 if reading.stats is None else reading.stats.pending


SORTS: dict[str, Callable[[SurveyReading], Any]] = {
    "trouble": _by_trouble,
    "name": lambda reading: reading.name,
    "pending": lambda reading: (-_pending(reading), reading.name),
    "oldest": lambda reading: (-_oldest(reading), reading.name),
    "change": lambda reading: (-(reading.verdict.change or 0.0), reading.name),
}


def overview(
    survey: Survey, history: History, *, find: str = "", sort: str = "trouble", page: int = 1
) -> OverviewPage:
    """Return one page of queues; the backend is not asked."""
    find, sort = find[:LONGEST_FILTER], sort if sort in SORTS else "trouble"
    everything = survey.readings()
    matching = [one for one in everything if find.lower() in one.name.lower()]
    matching.sort(key=SORTS[sort])
    page, pages, shown = one_page(matching, page, PAGE_SIZE)
    counted = [one.stats for one in everything if one.stats is not None]
    return OverviewPage(
        queues=[_row(reading, history) for reading in shown],
        find=find,
        sort=sort,
        page=page,
        pages=pages,
        total=len(matching),
        all=len(everything),
        alarms=sum(one.verdict.severity >= Severity.ALARM for one in everything),
        pending=sum(stats.pending for stats in counted),
        in_flight=sum(stats.in_flight for stats in counted),
        delayed=sum(stats.delayed for stats in counted),
        letters=sum(one.stats.total for one in everything if one.has_letters and one.stats),
        left_out=survey.state.left_out,
    )


def one_page(items: Sequence[V], page: int, size: int) -> tuple[int, int, Sequence[V]]:
    """Return the number of the page nearest to the one asked for, how many there are, and it."""
    pages = max(-(-len(items) // size), 1)
    page = min(max(page, 1), pages)
    return page, pages, items[(page - 1) * size : page * size]


def _row(reading: SurveyReading, history: History) -> QueueRow:
    stats, verdict, now = reading.stats, reading.verdict, time.time()
    samples = history.read(reading.name, FINE.keep)
    return QueueRow(
        name=reading.name,
        severity=verdict.severity.name.lower(),
        badges=tuple(str(badge) for badge in verdict.badges),
        pending=None if stats is None else stats.pending,
        in_flight=None if stats is None else stats.in_flight,
        delayed=None if stats is None else stats.delayed,
        oldest_age_seconds=None if stats is None else stats.oldest_age_seconds,
        change_per_second=verdict.change,
        drain_seconds=verdict.drain_seconds,
        stuck_seconds=verdict.stuck_seconds,
        places=reading.places,
        counted_seconds_ago=None if stats is None else round(reading.age_seconds, 1),
        has_letters=reading.has_letters,
        error=reading.error,
        line=sparkline(samples, now - FINE.keep, now),
    )
