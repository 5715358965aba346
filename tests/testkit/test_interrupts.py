"""An interrupt that Python drops comes again."""

import signal
import sys
import threading
import weakref

import pytest

from testkit.interrupts import sparing_coverage, strike_again_if_lost
from testkit.waiting import eventually

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer"),
    pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(),
        reason="signals need the main thread",
    ),
]


def interrupt(number, frame):
    raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def interrupts(monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    strike_again_if_lost()
    before = signal.signal(signal.SIGALRM, sparing_coverage(interrupt))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


class Collected:
    pass


def lose_an_interrupt():
    collected = Collected()
    strike = weakref.ref(collected, lambda _: signal.raise_signal(signal.SIGALRM))
    del collected
    assert strike() is None


def test_an_interrupt_in_a_callback_comes_again():
    with pytest.raises(KeyboardInterrupt):
        lose_an_interrupt()
        eventually(lambda: False)


class Lost:
    """What Python tells of an exception that it drops; it is read when the next one comes."""

    @property
    def exc_value(self):
        signal.raise_signal(signal.SIGALRM)
        return KeyboardInterrupt()


def test_one_that_comes_while_another_is_reported_comes_again():
    with pytest.raises(KeyboardInterrupt) as raised:
        sys.unraisablehook(Lost())
        eventually(lambda: False)
    assert "_strike_again" not in [entry.name for entry in raised.traceback]
