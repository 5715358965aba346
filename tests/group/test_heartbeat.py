import contextvars
import threading

import pytest

from weakincentives.runtime import Heartbeat
from weakincentives.runtime.heartbeat import OVERDUE
from weakincentives.runtime.mailbox.testing import FakeClock

WITHIN = 100.0


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def heart(clock):
    return Heartbeat(clock=clock)


def test_elapsed_counts_from_birth_and_then_from_the_last_beat(heart, clock):
    clock.advance(7)
    assert heart.elapsed() == 7
    heart.beat()
    clock.advance(2)
    assert heart.elapsed() == 2
    assert heart.last == clock.monotonic() - 2


def test_needs_no_clock():
    assert 0 <= Heartbeat().elapsed() < 5


def test_a_silent_job_is_not_hidden_by_the_beats_of_others(heart, clock):
    with heart.working():
        clock.advance(50)
        # Another thread of the same loop: it has its own context.
        contextvars.Context().run(heart.beat)
        assert heart.elapsed() == 50
        heart.beat()
        assert heart.elapsed() == 0
    clock.advance(3)
    assert heart.elapsed() == 3


def test_the_most_silent_of_several_jobs_counts(heart, clock):
    one, two = contextvars.copy_context(), contextvars.copy_context()
    first, second = heart.working(), heart.working()
    one.run(first.__enter__)
    clock.advance(10)
    two.run(second.__enter__)
    clock.advance(5)
    assert heart.elapsed() == 15
    one.run(first.__exit__, None, None, None)
    assert heart.elapsed() == 5
    two.run(second.__exit__, None, None, None)
    assert heart.elapsed() == 0


def test_a_job_knows_whose_it_is(heart):
    other = Heartbeat()
    assert not heart.at_work()
    with heart.working():
        assert heart.at_work()
        assert not other.at_work()
        with other.working():
            assert other.at_work()
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(heart.at_work()))
        thread.start()
        thread.join()
        assert elsewhere == [False]
    assert not heart.at_work()


def test_a_loop_that_never_looked_is_not_ready(heart):
    assert heart.trouble(WITHIN) == "has not received from its mailbox yet"
    with heart.looking(20):
        # Nothing is known yet: the broker may be down and the client still trying.
        assert heart.trouble(WITHIN) == "has not received from its mailbox yet"
    assert heart.trouble(WITHIN) is None


def test_a_failed_look_is_trouble_until_one_succeeds(heart):
    heart.looked()
    with pytest.raises(ConnectionError), heart.looking():
        raise ConnectionError("the password is hunter2")
    assert heart.trouble(WITHIN) == "its last receive failed with ConnectionError"
    with heart.looking(20):
        assert heart.trouble(WITHIN) is not None
    assert heart.trouble(WITHIN) is None


def test_a_long_poll_in_progress_counts_for_as_long_as_it_may_wait(heart, clock):
    heart.looked()
    with heart.looking(5 * WITHIN):
        clock.advance(5 * WITHIN + OVERDUE)
        assert heart.trouble(WITHIN) is None
        clock.advance(5)
        assert heart.trouble(WITHIN) == "its receive has exceeded its wait time by 20 s"
    assert heart.trouble(WITHIN) is None


def test_one_hanging_look_of_several_does_not_count_while_others_succeed(heart, clock):
    heart.looked()
    with heart.looking(20):
        clock.advance(500)
        with heart.looking(20):
            assert heart.trouble(WITHIN) is None
        assert heart.trouble(WITHIN) is None


def test_a_loop_that_has_not_looked_lately_is_not_ready(heart, clock):
    heart.looked()
    clock.advance(WITHIN)
    assert heart.trouble(WITHIN) is None
    clock.advance(1)
    assert heart.trouble(WITHIN) == "has not reached its mailbox for 101 s"
    heart.looked()
    assert heart.trouble(WITHIN) is None


def test_looks_and_jobs_beat(heart, clock):
    clock.advance(9)
    with heart.looking():
        assert heart.elapsed() == 0
        clock.advance(9)
    assert heart.elapsed() == 0
    clock.advance(9)
    with heart.working():
        assert heart.elapsed() == 0
        clock.advance(9)
    assert heart.elapsed() == 0


def test_probes_may_read_while_many_threads_write(heart):
    stop = threading.Event()

    def turn():
        while not stop.is_set():
            with heart.looking(1):
                pass
            with heart.working():
                pass

    threads = [threading.Thread(target=turn) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2000):
            assert heart.elapsed() < 60
            heart.trouble(WITHIN)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
