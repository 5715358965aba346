"""Waiting before another try."""

import pytest

from weakincentives.adapters import CallableAdapter
from weakincentives.runtime import (
    Backoff,
    InMemoryMailbox,
    InvalidParameterError,
    MainLoop,
    MainLoopConfig,
    Worker,
)
from weakincentives.runtime.worker.backoff import transport_pause


def test_doubles_up_to_the_cap():
    backoff = Backoff(base=60, cap=900, jitter=False)
    assert [backoff.delay(n) for n in (1, 2, 3, 4, 5, 6)] == [60, 120, 240, 480, 900, 900]


def test_jitter_is_full():
    backoff = Backoff(base=60, cap=900)
    assert backoff.delay(3, lambda: 0.0) == 0
    assert backoff.delay(3, lambda: 0.5) == 120
    assert 0 <= backoff.delay(3) <= 240


@pytest.mark.parametrize("attempt", [-1, 0, 1])
def test_there_is_no_attempt_before_the_first(attempt):
    assert Backoff(base=60, jitter=False).delay(attempt) == 60


def test_what_is_left_out_is_as_in_a_worker():
    assert Backoff() == Worker(InMemoryMailbox("jobs"), str).config.backoff
    assert Backoff(jitter=False).delay(1) == 2
    assert Backoff(cap=30, jitter=False).delay(100) == 30
    assert Backoff(cap=1, jitter=False).delay(1) == 1


def test_loops_that_ask_a_model_wait_a_minute_at_first():
    loop = MainLoop(adapter=CallableAdapter(str), requests=InMemoryMailbox("jobs"))
    assert MainLoopConfig().backoff == loop._worker.config.backoff == Backoff(base=60, cap=900)


def test_many_attempts_do_not_overflow():
    assert Backoff(jitter=False).delay(10**9) == 900


@pytest.mark.parametrize(
    ("base", "cap"),
    [
        (-1, 5),
        (10, 5),
        (float("nan"), 5),
        (1, float("nan")),
        (1, float("inf")),
        (None, 5),
        (1, "5"),
        (True, 5),
    ],
)
def test_nonsense_is_refused(base, cap):
    with pytest.raises(InvalidParameterError, match="base"):
        Backoff(base=base, cap=cap)


def test_loops_wait_a_tenth_to_five_seconds():
    assert transport_pause(1, lambda: 0.0) == 0.1
    assert transport_pause(50, lambda: 1.0) == 5.0
