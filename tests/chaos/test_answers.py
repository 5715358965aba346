"""The checkers of answers and parts find what must not be."""

import pytest

from chaos.answers import Answer, Asked, PartSeen, Told, answered, cancels, parts_read

ASKED = Asked(1, is_replayed=True)
OPEN, VALUE = Answer("pending", "a"), Answer("resolved", "a", "run 1")
FAILED = Answer("failed", "a", "letter-a ref-1")
OPEN_AGAIN, LATER = Answer("pending", "b"), Answer("resolved", "b", "run 2")
CANCELLED, EXPIRED = Answer("cancelled", "a"), Answer("expired", "a")
HEARD = [Told("failed", "letter-a ref-1"), Told("resolved", "run 2")]


@pytest.mark.parametrize(
    ("looks", "told"),
    [
        ([OPEN, VALUE], [Told("resolved", "run 1")]),
        ([VALUE], []),
        ([OPEN, FAILED, OPEN_AGAIN, LATER], HEARD),
        ([OPEN, OPEN_AGAIN, LATER], HEARD),
        ([OPEN, CANCELLED], [Told("cancelled")]),
    ],
)
def test_what_is_right(looks: list[Answer], told: list[Told]) -> None:
    assert answered(ASKED, looks, told) == []


@pytest.mark.parametrize(
    ("looks", "told", "finding"),
    [
        ([OPEN], [], "never answered"),
        ([VALUE, Answer("gone")], [], "never answered"),
        ([OPEN, FAILED], [], "no answer of its replay"),
        ([OPEN, EXPIRED], [], "its time was not over"),
        ([VALUE, Answer("resolved", "a", "run 2")], [], "two answers of one sending"),
        ([FAILED, VALUE], [], "two answers of one sending"),
        ([FAILED, OPEN, VALUE], [], "open again for the same sending"),
        ([CANCELLED, OPEN_AGAIN, LATER], [], "after Answer(state='cancelled'"),
        ([VALUE, LATER], [], "after Answer(state='resolved'"),
        ([OPEN, OPEN_AGAIN, OPEN, VALUE], [], "given back to a former sending"),
        ([CANCELLED], [Told("resolved", "run 1")], "its caller was told"),
        ([VALUE], [Told("resolved", "run 2")], "its caller was told"),
        (
            [FAILED, OPEN_AGAIN, LATER],
            [Told("failed", "letter-a ref-2")],
            "two failures of one sending",
        ),
    ],
)
def test_what_is_wrong(looks: list[Answer], told: list[Told], finding: str) -> None:
    assert [text for text in answered(ASKED, looks, told) if finding in text]


def test_cancels() -> None:
    value, cancelled = Told("resolved", "run 1"), Told("cancelled")
    assert cancels(1, True, cancelled, CANCELLED) == cancels(1, False, value, VALUE) == []
    assert cancels(1, True, value, VALUE)
    assert cancels(1, True, cancelled, VALUE)
    assert cancels(1, False, cancelled, CANCELLED)


PARTS = [
    PartSeen(0, 1, "x", 0),
    PartSeen(1, 1, "x", 1),
    PartSeen(2, 2, "y", 0),
    PartSeen(3, 2, "y", 1),
]


def changed(at: int, **fields: object) -> list[PartSeen]:
    return [part._replace(**fields) if i == at else part for i, part in enumerate(PARTS)]


def test_parts_in_order() -> None:
    assert parts_read(1, [PARTS, PARTS], 2, "y") == []


@pytest.mark.parametrize(
    ("readings", "finding"),
    [
        ([PARTS, PARTS[:3]], "readers got [3, 4] parts"),
        ([PARTS[:1] + PARTS], "parts doubled or missing: [0, 0"),
        ([PARTS[:1] + PARTS[2:]], "parts doubled or missing: [0, 2"),
        ([PARTS, changed(1, run="z")], "one index, two parts"),
        ([changed(3, series=1)], "an older series after a newer one"),
        ([changed(1, run="z")], "two runs in one series"),
        ([changed(1, place=2)], "parts of a run doubled or missing: [0, 2]"),
        ([PARTS[:3]], "1 parts of the run that was answered, not 2"),
    ],
)
def test_parts_that_are_wrong(readings: list[list[PartSeen]], finding: str) -> None:
    assert [text for text in parts_read(1, readings, 2, "y") if finding in text]
