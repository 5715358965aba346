"""The table of docs/aws.md says what the calls cost that are made today."""

import pytest

from benchmarks.aws_costs import PAGE, PLACE, SCENES, Cost, Meter, lines
from testkit.cloud import Cloud


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_message_costs_what_the_table_says(ministack: Cloud, number: int) -> None:
    what = list(SCENES)[number]
    row = list(lines({what: SCENES[what](ministack, Meter(ministack))}))[2]
    assert row in table()


def test_the_table_has_every_scene() -> None:
    assert [what for what in SCENES if f"| {what} |" not in table()] == []


def test_a_million_of_them() -> None:
    assert Cost(requests=3).of_a_million == pytest.approx(1.2)
    assert Cost(reads=2, writes=4).of_a_million == pytest.approx(2.75)


def table() -> str:
    (found,) = PLACE.findall(PAGE.read_text(encoding="utf-8"))
    return str(found)
