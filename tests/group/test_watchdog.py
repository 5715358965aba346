import threading

import pytest

from testkit.startstop import Service, exercise
from testkit.waiting import eventually
from weakincentives.runtime import Heartbeat, Watchdog
from weakincentives.runtime.group.watchdog import all_stacks, silence_while_awake
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.testing import FakeClock


class Pulse:
    def __init__(self, clock=None):
        self.running = True
        self.heartbeat = Heartbeat(clock=clock)


@pytest.fixture
def clock():
    return FakeClock()


def test_a_loop_that_beats_is_left_alone(clock):
    loop = Pulse(clock)
    dog = Watchdog([loop], threshold=50, clock=clock)
    for _ in range(100):
        clock.advance(5)
        loop.heartbeat.beat()
        assert dog.check() == []


def test_a_silent_loop_is_found_after_the_threshold_and_not_before(clock):
    loop, lively = Pulse(clock), Pulse(clock)
    dog = Watchdog([loop, lively], threshold=50, clock=clock)
    found = []
    for second in range(5, 101, 5):
        clock.advance(5)
        lively.heartbeat.beat()
        if hung := dog.check():
            found.append((second, hung))
    assert found[0] == (50, [loop])


def test_a_loop_that_is_not_running_cannot_hang(clock):
    loop = Pulse(clock)
    loop.running = False
    dog = Watchdog([loop], threshold=50, clock=clock)
    for _ in range(30):
        clock.advance(5)
        assert dog.check() == []
    # It starts long after it was made, and has not yet beaten.
    loop.running = True
    clock.advance(5)
    assert dog.check() == []


def test_time_in_which_the_process_was_stopped_does_not_count(clock):
    loop = Pulse(clock)
    dog = Watchdog([loop], threshold=50, clock=clock)
    clock.advance(5)
    assert dog.check() == []
    clock.advance(36_000)
    assert dog.check() == []
    clock.advance(5)
    loop.heartbeat.beat()
    assert dog.check() == []


@pytest.mark.parametrize(
    ("silence", "elapsed", "gap", "most", "expected"),
    [
        (0, 2, 5, 10, 2),  # it has beaten since the last look
        (30, 2, 5, 10, 2),
        (30, 35, 5, 10, 35),  # it has not
        (30, 9000, 9000, 10, 40),  # stopped all the while
        (30, 8999, 9000, 10, 10),  # it beat, then was stopped
    ],
)
def test_witnessed(silence, elapsed, gap, most, expected):
    assert silence_while_awake(silence, elapsed, gap, most) == expected


def test_the_report_names_the_loop_and_shows_every_stack():
    reports, told, go = [], threading.Event(), threading.Event()

    def action(report):
        reports.append(report)
        told.set()

    def hang_here():
        go.wait(30)

    hanging = threading.Thread(target=hang_here, name="the-hanging-one")
    hanging.start()
    dog = Watchdog([Pulse()], threshold=0.05, action=action)
    dog.start()
    try:
        assert told.wait(120)
    finally:
        go.set()
        hanging.join()
        dog.stop()
    [report] = reports
    assert "no heartbeat for 0.05 s from Pulse" in report
    assert "the-hanging-one" in report
    assert "hang_here" in report


def test_it_may_be_stopped_from_its_own_action():
    done = threading.Event()
    dog = Watchdog([Pulse()], threshold=0.05, action=lambda report: (dog.stop(), done.set()))
    dog.start()
    assert done.wait(120)
    eventually(lambda: not any(thread.name == "watchdog" for thread in threading.enumerate()))


def test_all_stacks_shows_this_very_function():
    assert "test_all_stacks_shows_this_very_function" in all_stacks()


@pytest.mark.parametrize("threshold", [0, -1, float("nan"), "10", True])
def test_a_threshold_must_be_a_time(threshold):
    with pytest.raises(InvalidParameterError, match="threshold"):
        Watchdog([Pulse()], threshold=threshold)


def test_start_and_stop_in_any_order():
    exercise(
        Service(
            lambda: Watchdog([Pulse()], threshold=1000),
            start=lambda dog: dog.start(),
            stop=lambda dog: dog.stop(),
            up=lambda dog: dog._watching is not None,
            final=False,
        )
    )
