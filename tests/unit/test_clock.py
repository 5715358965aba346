import time

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.testing import FakeClock


def test_the_system_clock_moves_forward() -> None:
    clock: Clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_the_system_clock_tells_the_time_of_day() -> None:
    before = time.time()
    assert before <= SystemClock().time() <= time.time()


def test_a_fake_clock_moves_only_when_told() -> None:
    fake = FakeClock(start=100.0)
    clock: Clock = fake
    assert (clock.monotonic(), clock.time()) == (100.0, 100.0)
    fake.advance(2.5)
    assert (clock.monotonic(), clock.time()) == (102.5, 102.5)
