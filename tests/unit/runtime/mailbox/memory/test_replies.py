"""Replies that nobody reads do not stay in memory for ever."""

import time

from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox import ReplyState
from weakincentives.runtime.mailbox.memory.replies import InMemoryReplyTable
from weakincentives.runtime.mailbox.testing import driven

MANY = 100_000


def test_unanswered_replies_are_forgotten_once_they_have_expired() -> None:
    clock = FakeClock()
    table = InMemoryReplyTable(clock)
    for number in range(MANY):
        driven(table.create(f"old-{number}", 10))
    clock.advance(10 + 61)
    for number in range(MANY // 50):
        driven(table.create(f"new-{number}", 10))
    assert len(table._entries) == MANY // 50


def test_a_steady_stream_of_unanswered_replies_needs_bounded_memory() -> None:
    clock = FakeClock()
    table = InMemoryReplyTable(clock)
    largest = 0
    for number in range(MANY):
        clock.advance(0.1)
        driven(table.create(f"reply-{number}", 40))  # 1,000 are younger than 40 + 60 seconds
        largest = max(largest, len(table._entries))
    assert largest <= 2_100


def test_answers_that_were_never_read_are_forgotten_too() -> None:
    clock = FakeClock()
    table = InMemoryReplyTable(clock)
    for number in range(1_000):
        driven(table.create(f"reply-{number}", 10))
        driven(table.resolve(f"reply-{number}", "answer"))
    clock.advance(2 * 60 + 1)
    for number in range(20):
        driven(table.create(f"new-{number}", 10))
    assert len(table._entries) == 20


def test_what_is_still_awaited_or_expired_just_now_stays() -> None:
    clock = FakeClock()
    table = InMemoryReplyTable(clock)
    driven(table.create("short", 10))
    driven(table.create("long", 1_000))
    clock.advance(30)
    for number in range(100):
        driven(table.create(f"other-{number}", 10))
    short, long = driven(table.get("short")), driven(table.get("long"))
    assert short is not None
    assert short.state == ReplyState.EXPIRED
    assert long is not None
    assert long.state == ReplyState.PENDING


def test_creating_costs_the_same_among_many() -> None:
    table = InMemoryReplyTable(FakeClock())

    def seconds_for(count: int, first: int) -> float:
        started = time.thread_time()
        for number in range(first, first + count):
            driven(table.create(f"reply-{number}", 1_000))
        return time.thread_time() - started

    alone = seconds_for(2_000, 0)
    seconds_for(MANY, 2_000)
    among_many = seconds_for(2_000, MANY + 2_000)
    assert among_many < 20 * alone + 0.05
