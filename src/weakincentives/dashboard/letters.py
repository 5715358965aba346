"""The pages of dead letters: all queues that hold some, one queue by fingerprint, one letter."""

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from weakincentives.error_text import printable
from weakincentives.errors import WinkError
from weakincentives.runtime.dead_letters.find import FoundLetter, LetterFinder
from weakincentives.runtime.dead_letters.fingerprint import Fingerprint, fingerprint_of
from weakincentives.runtime.dead_letters.groups import LetterGroups
from weakincentives.runtime.dead_letters.letter import age_of
from weakincentives.runtime.mailbox import UnsupportedOperationError
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.runtime.mailbox.seam.store import Seen

from .contents import Contents, ContentsReader
from .formatting import time_text
from .queue_page import check_queue_name
from .search import Bounds, Found, letter_terms, search
from .survey import Survey

__all__ = [
    "GroupView",
    "LetterNotFoundError",
    "LetterPage",
    "LetterRow",
    "LettersPage",
    "letter_page",
    "letter_queues",
    "letters_page",
]

MOST_LOOKED = 2_000
"""How many letters are grouped; a count of all of them runs in the background."""
SHOWN = 50
BARS = 24
KEPT_SECONDS, KEPT_SCANS = 10.0, 20
"""For how long the groups of one search are shown again, and of how many searches."""


class LetterNotFoundError(WinkError):
    """There is no such dead letter any more, or it is too far from the front."""


@dataclass(frozen=True, slots=True)
class GroupView:
    """The letters with one fingerprint."""

    fingerprint: str
    error_type: str
    frame: str | None
    count: int
    first: str
    last: str
    sources: list[str]
    last_error: str
    bars: list[int]
    """How many were given up in each part of the time between the first and the last of all."""


@dataclass(frozen=True, slots=True)
class LetterRow:
    """A dead letter in a list."""

    id: str
    place: int
    fingerprint: str
    error_type: str
    error: str
    source: str
    given_up_at: str
    age_seconds: float
    deliveries: int


@dataclass(frozen=True, slots=True)
class LettersPage:
    """The dead letters of one queue."""

    name: str
    pending: int
    find: str
    groups: list[GroupView]
    letters: list[LetterRow]
    matching: int
    """How many of those that were looked at match."""
    looked: int
    is_complete: bool
    """Whether all letters were looked at, so that ``matching`` is exact."""
    until: float
    """When this was seen; what is replayed later is not younger."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """All that is known of one dead letter."""

    name: str
    row: LetterRow
    message_id: str
    frame: str | None
    first_received_at: str
    traceback: str | None
    worker: str | None
    reply_to: str | None
    reply_id: str | None
    trace_id: str | None
    trace_link: str | None
    request_id: str | None
    origin_id: str | None
    body_type: str | None
    attributes: dict[str, str]
    contents: Contents
    wrong: list[str] = field(default_factory=list)
    """What is wrong with an edited body, if it was not sent."""
    edited: str | None = None


def letter_queues(survey: Survey) -> list[dict[str, Any]]:
    """Return the queues that hold dead letters, as far as the survey knows."""
    found = [one for one in survey.readings() if one.has_letters and one.stats is not None]
    found.sort(key=lambda one: -(one.stats.total if one.stats else 0))
    return [
        {
            "name": one.name,
            "letters": one.stats.total,
            "oldest_age_seconds": one.stats.oldest_age_seconds,
            "change_per_second": one.verdict.change,
        }
        for one in found
        if one.stats is not None
    ]


def open_letters(backend: Backend, name: str) -> StoreMailbox[Any, Any]:
    """Return the mailbox of dead letters of this name."""
    mailbox = backend.mailbox(check_queue_name(name))
    if not isinstance(mailbox, StoreMailbox):
        raise UnsupportedOperationError("dead letters need a mailbox of this package")
    return mailbox


class LetterScans:
    """The letters that searches have found, shown again for a while: a page is often refreshed."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], tuple[float, int, Found[FoundLetter]]] = {}

    def of(
        self, dlq: StoreMailbox[Any, Any], find: str, wanted: Callable[[FoundLetter], bool]
    ) -> tuple[int, Found[FoundLetter]]:
        """Return how many letters there are, and what a bounded search has found."""
        pending, now = dlq.stats().pending, time.monotonic()
        kept = self._kept.get((dlq.name, find))
        if kept is not None and kept[1] == pending and now - kept[0] < KEPT_SECONDS:
            return pending, kept[2]
        finder = LetterFinder(dlq, wanted)
        found = search(dlq, finder, start=0, bounds=Bounds(MOST_LOOKED, MOST_LOOKED))
        while len(self._kept) >= KEPT_SCANS:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[dlq.name, find] = now, pending, found
        return pending, found


def letters_page(
    backend: Backend, scans: LetterScans, reader: ContentsReader, name: str, find: str
) -> LettersPage:
    """Return the dead letters of a queue that match; this asks the backend."""
    dlq = open_letters(backend, name)
    if not dlq.capabilities.peeks:
        raise UnsupportedOperationError(
            "this backend cannot show dead letters without receiving them; use wink dlq"
        )
    until = time.time()
    pending, found = scans.of(dlq, find, letter_terms(find, reader))
    groups = LetterGroups()
    times: dict[Fingerprint, list[float]] = {}
    for _, one in found.messages:
        groups.add(one)
        at = one.letter.dead_lettered_at.timestamp()
        times.setdefault(fingerprint_of(one.letter), []).append(at)
    first = min((min(each) for each in times.values()), default=until)
    return LettersPage(
        name=name,
        pending=pending,
        find=find,
        groups=[
            GroupView(
                fingerprint=group.fingerprint.id,
                error_type=printable(group.fingerprint.error_type),
                frame=group.fingerprint.frame and printable(group.fingerprint.frame),
                count=group.count,
                first=time_text(group.first),
                last=time_text(group.last),
                sources=sorted(group.sources)[:10],
                last_error=printable(group.example),
                bars=_bars(times.get(group.fingerprint, []), first, until),
            )
            for group in groups.largest_first()
        ],
        letters=[_row(place, one) for place, one in found.messages[:SHOWN]],
        matching=len(found.messages),
        looked=found.looked,
        is_complete=found.next_start is None or found.looked >= pending,
        until=until,
    )


def letter_page(
    backend: Backend, reader: ContentsReader, name: str, id: str, place: int, trace_url: str | None
) -> LetterPage:
    """Return one dead letter; this asks the backend."""
    dlq = open_letters(backend, name)
    finder = LetterFinder(dlq, None)

    def wanted(seen: Seen) -> FoundLetter | None:
        return finder(seen) if seen.id == id else None

    found = search(dlq, wanted, start=max(place - 200, 0), bounds=Bounds(1, 400))
    if not found.messages and place >= 200:
        found = search(dlq, wanted, start=0, bounds=Bounds(1, 20_000, 2.0))
    if not found.messages:
        raise LetterNotFoundError(f"no dead letter {id} waits in {name}, or it is too far back")
    place, one = found.messages[0]
    letter = one.letter
    raw = letter.raw_payload
    trace = letter.trace_id
    return LetterPage(
        name=name,
        row=_row(place, one),
        message_id=letter.message_id,
        frame=fingerprint_of(letter).frame,
        first_received_at=time_text(letter.first_received_at),
        traceback=None if letter.traceback is None else _lines(letter.traceback),
        worker=letter.worker,
        reply_to=letter.reply_to,
        reply_id=letter.reply_id,
        trace_id=trace,
        trace_link=_trace_link(trace_url, trace),
        request_id=None if letter.request_id is None else str(letter.request_id),
        origin_id=letter.origin_id,
        body_type=letter.body_type,
        attributes=reader.attributes(letter.attributes),
        contents=reader.of_body(letter.body, whole=True) if raw is None else reader.of_bytes(raw),
    )


def _row(place: int, found: FoundLetter) -> LetterRow:
    letter = found.letter
    return LetterRow(
        id=found.id,
        place=place,
        fingerprint=fingerprint_of(letter).id,
        error_type=printable(letter.last_error_type),
        error=printable(letter.last_error),
        source=letter.source_mailbox,
        given_up_at=time_text(letter.dead_lettered_at),
        age_seconds=max(age_of(letter), 0.0),
        deliveries=letter.delivery_count,
    )


def _lines(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


def _trace_link(trace_url: str | None, trace: str | None) -> str | None:
    if trace_url is None or trace is None or not trace.isalnum():
        return None
    return trace_url.replace("{trace_id}", trace)


def _bars(times: list[float], first: float, until: float) -> list[int]:
    """Return how many of the times lie in each of equal parts of the whole."""
    width = max((until - first) / BARS, 1.0)
    counts = Counter(min(max(int((at - first) / width), 0), BARS - 1) for at in times)
    return [counts[number] for number in range(BARS)]
