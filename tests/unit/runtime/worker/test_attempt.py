"""The states of an attempt, and which may follow which."""

from itertools import product

import pytest

from weakincentives.runtime import LeaseExtender
from weakincentives.runtime.mailbox import InMemoryMailbox
from weakincentives.runtime.worker.attempt import Attempt, State
from weakincentives.runtime.worker.decide import Reply

# What may follow, written down a second time: by hand, and as a reader would say it.
STORY = """
received:   running unanswered finished acknowledged | given back | abandoned | inherited
running:    unanswered finished acknowledged | given back | abandoned | inherited
unanswered: finished acknowledged | given back | abandoned | inherited
finished:   acknowledged | given back | abandoned | inherited
"""
LAST = {State.ACKNOWLEDGED, State.GIVEN_BACK, State.ABANDONED, State.INHERITED}


def told() -> set[tuple[State, State]]:
    pairs = set()
    for line in STORY.strip().splitlines():
        first, _, rest = line.partition(":")
        pairs |= {(State(first), state) for state in State if state.value in rest}
    return pairs


@pytest.fixture
def attempt() -> Attempt:
    box = InMemoryMailbox[str]("jobs")
    box.send("a")
    (message,) = box.receive()
    return Attempt(message, LeaseExtender().hold(message))


@pytest.mark.parametrize(("before", "after"), list(product(State, State)))
def test_which_state_may_follow(attempt: Attempt, before: State, after: State) -> None:
    attempt.state = before
    if before in LAST:
        attempt.become(after)  # two threads may speak for an attempt, and the first one counts
        assert attempt.state is before
    elif before is after or (before, after) in told():
        attempt.become(after)
        assert attempt.state is after
    else:
        with pytest.raises(RuntimeError, match=f"cannot become {after.value}"):
            attempt.become(after)
        assert attempt.state is before


def test_an_attempt_begins_as_received(attempt: Attempt) -> None:
    assert attempt.state is State.RECEIVED
    assert not attempt.has_begun
    assert not attempt.has_ended


def test_an_answer_is_sent_before_the_acknowledgement(attempt: Attempt) -> None:
    attempt.become(State.RUNNING)
    attempt.answer_with(Reply(3))
    assert attempt.state is State.UNANSWERED
    attempt.answer_with(Reply("that could not be sent"))
    assert attempt.state is State.UNANSWERED
    assert attempt.has_ended
    attempt.finish()
    assert attempt.state is State.FINISHED
    assert attempt.answer is None
    assert attempt.has_ended


@pytest.mark.parametrize("state", [state for state in State if state not in LAST])
def test_who_has_handed_over_is_not_heard_any_more(attempt: Attempt, state: State) -> None:
    attempt.state = state
    attempt.answer = Reply(3)
    attempt.sequels = (("replies", "id"),)
    other = attempt.hand_over("shutdown")
    assert other.state is state
    assert other.message is attempt.message
    assert (other.answer, other.sequels) == (attempt.answer, attempt.sequels)
    attempt.finish()
    assert attempt.state is State.ABANDONED
    assert other.answer == Reply(3)


@pytest.mark.parametrize("state", State)
def test_a_forked_child_has_no_part_in_any_attempt(attempt: Attempt, state: State) -> None:
    attempt.state, attempt.body = state, "a"
    attempt.inherit()
    assert not attempt.has_begun
    assert not attempt.has_ended
    attempt.become(State.FINISHED)
    assert attempt.state is State.INHERITED
