"""The page of one queue: its counts over time, and the messages that wait in it."""

import time
from dataclasses import dataclass
from typing import Any

from weakincentives.error_text import printable
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.message import as_datetime
from weakincentives.runtime.mailbox.queue_names import is_name
from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.runtime.mailbox.seam.store import Seen

from .contents import Contents, ContentsReader, readable_envelope
from .formatting import time_text
from .history import History
from .search import Bounds, Found, message_terms, search
from .survey import Survey
from .workers_page import HeldView, held_in

__all__ = ["MessageView", "QueuePage", "queue_page"]

SPANS = {"hour": 3600, "day": 86_400, "week": 7 * 86_400}
PAGE_SIZE = 20


@dataclass(frozen=True, slots=True)
class MessageView:
    """A message that waits."""

    id: str
    place: int
    """How many are before it."""
    sent_at: str
    age_seconds: float
    delivery_count: int
    nack_count: int
    type: str | None
    attributes: dict[str, str]
    reply_to: str | None
    reply_id: str | None
    contents: Contents


@dataclass(frozen=True, slots=True)
class PauseView:
    """Who has paused a queue, when and why."""

    by: str
    at: str
    because: str | None


@dataclass(frozen=True, slots=True)
class QueuePage:
    """What is known of one queue."""

    name: str
    severity: str
    badges: tuple[str, ...]
    error: str | None
    pending: int | None
    in_flight: int | None
    delayed: int | None
    unreadable: int
    oldest_age_seconds: float | None
    change_per_second: float | None
    drain_seconds: float | None
    has_letters: bool
    span: str
    spans: tuple[str, ...]
    chart: list[list[int]]
    """Times, and the counts of pending, in flight and delayed messages then."""
    can_peek: bool
    places: int | None
    pause: PauseView | None
    held: list[HeldView]
    """Messages in flight, as far as workers tell: those that they have held the longest."""
    messages: list[MessageView]
    find: str
    start: int
    looked_until: int
    """How many messages from the front were looked at, those before ``start`` not counted."""
    next_start: int | None
    """Where to go on; None if all were seen."""
    sent_id: str | None = None


def check_queue_name(name: str) -> str:
    """Return the name if a queue can have it."""
    if not is_name(name):
        raise InvalidParameterError(f"{name[:100]!r} cannot be the name of a queue")
    return name


def queue_page(
    backend: Backend,
    survey: Survey,
    history: History,
    reader: ContentsReader,
    name: str,
    *,
    find: str = "",
    start: int = 0,
    span: str = "hour",
    sent_id: str | None = None,
) -> QueuePage:
    """Return the page of a queue; this asks the backend."""
    reading = survey.reading(check_queue_name(name))
    mailbox: Any = backend.mailbox(name)
    span = span if span in SPANS else "hour"
    stats = mailbox.stats() if reading is None else reading.stats
    can_peek = isinstance(mailbox, StoreMailbox) and mailbox.capabilities.peeks
    found: Found[Seen] = Found((), 0, None)
    if can_peek:
        wanted = message_terms(find, reader, mailbox)
        bounds = Bounds(PAGE_SIZE) if find.strip() else Bounds(PAGE_SIZE, PAGE_SIZE)
        found = search(mailbox, wanted, start=start, bounds=bounds)
    verdict = None if reading is None else reading.verdict
    whole = len(found.messages) == 1
    return QueuePage(
        name=name,
        severity="quiet" if verdict is None else verdict.severity.name.lower(),
        badges=() if verdict is None else tuple(str(badge) for badge in verdict.badges),
        error=None if reading is None else reading.error,
        pending=None if stats is None else stats.pending,
        in_flight=None if stats is None else stats.in_flight,
        delayed=None if stats is None else stats.delayed,
        unreadable=0 if stats is None else stats.unreadable,
        oldest_age_seconds=None if stats is None else stats.oldest_age_seconds,
        change_per_second=None if verdict is None else verdict.change,
        drain_seconds=None if verdict is None else verdict.drain_seconds,
        has_letters=reading is not None and reading.has_letters,
        span=span,
        spans=tuple(SPANS),
        chart=_chart(history, name, SPANS[span]),
        can_peek=can_peek,
        places=None if reading is None else reading.places,
        pause=_pause(backend, name) if stats is not None and stats.paused else None,
        held=held_in(survey.workers, name),
        messages=[_message(mailbox, reader, place, one, whole) for place, one in found.messages],
        find=find,
        start=start,
        looked_until=start + found.looked,
        next_start=found.next_start,
        sent_id=sent_id,
    )


def _message(
    mailbox: StoreMailbox[Any, Any], reader: ContentsReader, place: int, seen: Seen, whole: bool
) -> MessageView:
    envelope = readable_envelope(mailbox._sealer.open, seen.payload)
    sent = as_datetime(seen.enqueued_at)
    if envelope is None:
        raw = seen.payload if isinstance(seen.payload, bytes) else b""
        contents = reader.of_bytes(raw)
    else:
        contents = reader.of_body(envelope.body, whole=whole)
    reply_to = None if envelope is None else envelope.reply_to
    return MessageView(
        id=seen.id,
        place=place,
        sent_at=time_text(sent),
        age_seconds=max(time.time() - sent.timestamp(), 0.0),
        delivery_count=seen.delivery_count,
        nack_count=seen.nack_count,
        type=None if envelope is None else envelope.type,
        attributes={} if envelope is None else reader.attributes(envelope.attributes),
        reply_to=reply_to if reply_to is None or isinstance(reply_to, str) else reply_to.name,
        reply_id=None if envelope is None else envelope.reply_id,
        contents=contents,
    )


def _pause(backend: Backend, name: str) -> PauseView | None:
    for pause in backend.paused():
        if pause.queue == name:
            because = pause.because and printable(pause.because)
            return PauseView(printable(pause.by), time_text(pause.paused_at), because)
    return None  # it was resumed meanwhile


def _chart(history: History, name: str, seconds: int) -> list[list[int]]:
    samples = history.read(name, seconds)
    columns: list[list[int]] = [[], [], [], []]
    for sample in samples:
        for column, value in zip(columns, (sample.at, *sample.counts), strict=True):
            column.append(value)
    if samples:
        # Only changes are recorded: the last one holds until now.
        for column, value in zip(columns, (int(time.time()), *samples[-1].counts), strict=True):
            column.append(value)
    return columns
