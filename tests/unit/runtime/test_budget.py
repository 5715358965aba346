"""Deadlines and budgets."""

from datetime import UTC, datetime, timedelta

import pytest

from weakincentives.runtime import (
    Budget,
    BudgetExceededError,
    Deadline,
    DeadlineExceededError,
    InvalidParameterError,
    Session,
    Usage,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_a_deadline_knows_what_is_left():
    deadline = Deadline(NOON)
    assert deadline.remaining(NOON - timedelta(seconds=5)) == 5
    deadline.check(NOON - timedelta(seconds=5))
    for late in (0, 5):
        with pytest.raises(DeadlineExceededError, match=f"{late}.0 s ago"):
            deadline.check(NOON + timedelta(seconds=late))


def test_a_deadline_is_a_timeout():
    assert issubclass(DeadlineExceededError, TimeoutError)


def test_a_deadline_needs_a_time_zone():
    with pytest.raises(InvalidParameterError, match="time zone"):
        Deadline(datetime(2030, 1, 1))


def test_a_deadline_is_a_moment():
    with pytest.raises(InvalidParameterError, match="datetime"):
        Deadline("tomorrow")


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), 1e30, None, "60", True])
def test_after_nonsense(seconds):
    with pytest.raises(InvalidParameterError, match="seconds"):
        Deadline.after(seconds)


@pytest.mark.parametrize(
    "name", ["max_input_tokens", "max_output_tokens", "max_total_tokens", "max_cost"]
)
@pytest.mark.parametrize("limit", [-1, float("nan"), "10", True])
def test_a_budget_of_nonsense_is_refused(name, limit):
    with pytest.raises(InvalidParameterError, match=name):
        Budget(**{name: limit})


def test_after():
    assert 30 < Deadline.after(60).remaining() <= 60


def test_a_budget_knows_what_is_left():
    budget = Budget(max_input_tokens=10, max_total_tokens=15, max_cost=1.0)
    left = budget.left(Usage(input_tokens=4, output_tokens=3, cost=0.25))
    assert left == Budget(max_input_tokens=6, max_total_tokens=8, max_cost=0.75)
    assert budget.left(Usage(input_tokens=40)).max_input_tokens == 0


@pytest.mark.parametrize(
    ("budget", "name"),
    [
        (Budget(max_input_tokens=9), "max_input_tokens"),
        (Budget(max_output_tokens=4), "max_output_tokens"),
        (Budget(max_total_tokens=14), "max_total_tokens"),
        (Budget(max_cost=0.4), "max_cost"),
    ],
)
def test_spending_too_much_raises_where_it_happens(budget, name):
    session = Session()
    session.budget = budget
    with pytest.raises(BudgetExceededError, match=name):
        session.spend(input_tokens=10, output_tokens=5, cost=0.5)
    assert session.usage == Usage(10, 5, 0.5)


def test_spending_all_of_it_is_fine():
    session = Session()
    session.budget = Budget(max_total_tokens=15)
    session.spend(input_tokens=10, output_tokens=5)


def test_a_missing_resource_says_what_to_do():
    session = Session()
    session.resources = {str: "here"}
    assert session.resource(str) == "here"
    with pytest.raises(LookupError, match="resources="):
        session.resource(int)
