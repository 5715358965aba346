"""What must be true of the answers that callers get, and of their parts. No I/O.

A sending is one message: the caller's own, or the one that a replay sends for it. A reply belongs
to one sending at a time, its owner.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

__all__ = [
    "FINAL",
    "PENDING",
    "Answer",
    "Asked",
    "PartSeen",
    "Told",
    "answered",
    "cancels",
    "parts_read",
]

PENDING = "pending"
FINAL = ("resolved", "cancelled")
"""After these nothing else comes, not even by a replay."""


class Answer(NamedTuple):
    """What a reply says."""

    state: str
    """As `ReplyState`, or "gone" if there is no such reply."""
    owner: str = ""
    """The message whose answer it is."""
    detail: str = ""
    """Which run of the handler, or which dead letter and failure."""


class Told(NamedTuple):
    """What a caller was told by `wait`."""

    state: str
    detail: str = ""


class Asked(NamedTuple):
    """A caller's request."""

    number: int
    is_replayed: bool
    """Whether its dead letters are replayed, until it is answered otherwise."""
    may_expire: bool = False
    """Whether its caller waits for a short time only."""


def answered(asked: Asked, looks: Sequence[Answer], told: Iterable[Told]) -> list[str]:
    """Say what is wrong with what was seen of a reply, in this order, and what its caller heard.

    The last look was taken when no worker had anything left to do.
    """
    wrong: list[str] = []
    settled: dict[str, Answer] = {}
    former: list[str] = []
    before: Answer | None = None
    for look in looks:
        if before is not None and before.state in FINAL and look != before:
            wrong.append(f"{look} after {before}")
        if look.state != PENDING:
            first = settled.setdefault(look.owner, look)
            if look != first:
                wrong.append(f"two answers of one sending: {first}, then {look}")
        elif look.owner in settled:
            wrong.append(f"open again for the same sending: {look}")
        if before is not None and look.owner != before.owner:
            former.append(before.owner)
            if look.owner in former:
                wrong.append(f"given back to a former sending: {look}")
        before = look
    wrong += _not_ended(asked, looks[-1])
    wrong += _contradicted(looks, told)
    return [f"answers: request {asked.number}: {text}" for text in wrong]


def _not_ended(asked: Asked, last: Answer) -> list[str]:
    if last.state in (PENDING, "gone"):
        return [f"never answered: {last}"]
    if last.state == "failed" and asked.is_replayed:
        return [f"no answer of its replay: {last}"]
    if last.state == "expired" and not asked.may_expire:
        return [f"expired, although its time was not over: {last}"]
    return []


def _contradicted(looks: Sequence[Answer], told: Iterable[Told]) -> list[str]:
    """Compare with what the caller was told; a failure may be over before anybody looks."""
    last, wrong = looks[-1], []
    failures = {one.detail.split()[0]: one.detail for one in looks if one.state == "failed"}
    for one in told:
        if one.state in FINAL and (one.state, one.detail) != (last.state, last.detail):
            wrong.append(f"its caller was told {one}, but the reply says {last}")
        elif one.state == "failed":
            letter = one.detail.split()[0]
            if failures.setdefault(letter, one.detail) != one.detail:
                wrong.append(f"two failures of one sending: {failures[letter]}, then {one.detail}")
    return wrong


def cancels(number: int, was_cancelled: bool, told: Told, last: Answer) -> list[str]:
    """Say what is wrong with a cancel, with what `wait` said after it and the reply in the end."""
    wrong = []
    if was_cancelled != (told.state == "cancelled"):
        wrong.append(f"cancel() returned {was_cancelled}, and then wait() told {told}")
    if was_cancelled != (last.state == "cancelled"):
        wrong.append(f"cancel() returned {was_cancelled}, and in the end there was {last}")
    return [f"cancel: request {number}: {text}" for text in wrong]


class PartSeen(NamedTuple):
    """A part as a reader got it."""

    index: int
    series: int
    run: str
    place: int
    """Counts the parts of one run of the handler from 0."""


def parts_read(
    number: int, readings: Sequence[Sequence[PartSeen]], whole: int, value: Any
) -> list[str]:
    """Say what is wrong with what several readers got of one reply that was resolved.

    ``whole`` is how many parts a run emits, ``value`` the run whose value the caller got.
    """
    wrong, known = [], {}
    for reading in readings:
        if [part.index for part in reading] != list(range(len(reading))):
            wrong.append(f"parts doubled or missing: {[part.index for part in reading]}")
        for part in reading:
            if known.setdefault(part.index, part) != part:
                wrong.append(f"one index, two parts: {known[part.index]} and {part}")
    lengths = {len(reading) for reading in readings}
    if len(lengths) > 1:
        wrong.append(f"readers got {sorted(lengths)} parts")
    wrong += _mixed([known[index] for index in sorted(known)])
    last = [part for part in known.values() if part.run == value]
    if len(last) != whole:
        wrong.append(f"{len(last)} parts of the run that was answered, not {whole}")
    return [f"parts: request {number}: {text}" for text in wrong]


def _mixed(parts: Sequence[PartSeen]) -> list[str]:
    """Each series is one run from its beginning, and the series never go back."""
    wrong = []
    series: dict[int, list[PartSeen]] = defaultdict(list)
    for before, part in zip((None, *parts), parts, strict=False):
        if before is not None and part.series < before.series:
            wrong.append(f"an older series after a newer one: {before}, then {part}")
        series[part.series].append(part)
    for some in series.values():
        if len({part.run for part in some}) > 1:
            wrong.append(f"two runs in one series: {some[0]} and {some[-1]}")
        elif [part.place for part in some] != list(range(len(some))):
            wrong.append(f"parts of a run doubled or missing: {[part.place for part in some]}")
    return wrong
