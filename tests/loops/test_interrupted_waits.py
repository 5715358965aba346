"""An interrupt of a wait, or of a wake-up, leaves nothing locked on which others wait."""

import random
import signal
import threading
from contextlib import suppress

import pytest

from testkit.interrupts import sparing_coverage
from testkit.waiting import eventually
from weakincentives.runtime import Worker
from weakincentives.runtime.leases.scheduler import LeaseScheduler
from weakincentives.runtime.mailbox import InMemoryMailbox
from weakincentives.runtime.mailbox.seam.waiting import StopSignal
from weakincentives.runtime.worker.config import WorkerConfig

pytestmark = [
    # An interrupt that strikes in a callback of the collector is lost: Python only says so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer"),
    pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(),
        reason="signals need the main thread",
    ),
]
TIMES = 1000


class Interrupted(Exception):
    pass


@pytest.fixture
def interrupted():
    """Call a function again and again until a signal handler raises, soon."""

    def interrupt(number, frame):
        raise Interrupted

    draw, before = random.Random(1), signal.signal(signal.SIGALRM, sparing_coverage(interrupt))

    def call(function):
        try:
            # Again after a while, should the call hang.
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, 3e-5), 0.1)
            while True:
                function()
        except Interrupted:
            pass
        finally:
            with suppress(Interrupted):
                signal.setitimer(signal.ITIMER_REAL, 0)

    yield call
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def ends(function):
    thread = threading.Thread(target=function, daemon=True)
    thread.start()
    thread.join(120)
    return not thread.is_alive()


def test_a_loop_can_be_stopped_whose_pause_was_interrupted(interrupted):
    signals = [StopSignal() for _ in range(TIMES)]
    for stop in signals:
        interrupted(lambda: stop.wait(0))  # noqa: B023 - called at once
    assert ends(lambda: [stop.set() for stop in signals])
    assert all(stop.wait(20) for stop in signals)


def test_leases_are_kept_after_a_wake_up_was_interrupted(interrupted):
    scheduler = LeaseScheduler()
    scheduler.enter(scheduler)
    for _ in range(TIMES):
        interrupted(scheduler.wake_or_start)
        if not ends(scheduler.wake_or_start):
            pytest.fail("whoever wakes the thread hangs")
    thread = scheduler.thread
    scheduler.leave(scheduler)
    scheduler.wake_or_start()
    thread.join(120)
    assert not thread.is_alive()


class StruckTurn:
    """The turn of a worker: an interrupt strikes one thread as soon as it has taken it."""

    def __init__(self, turn, thread, waits_for):
        self.turn, self.thread, self.waits_for = turn, thread, waits_for
        self.struck = False

    def acquire(self, blocking=True):
        taken = self.turn.acquire(blocking)
        if taken and not blocking and self.thread() is threading.current_thread():
            self.waits_for.wait(60)
            self.struck = True
            raise KeyboardInterrupt
        return taken

    def __enter__(self):
        return self.turn.__enter__()

    def __exit__(self, *exc):
        return self.turn.__exit__(*exc)

    def __getattr__(self, name):
        return getattr(self.turn, name)


def test_a_thread_that_is_struck_with_the_turn_in_hand_passes_it_on(monkeypatch):
    box, looking = InMemoryMailbox("jobs"), threading.Event()
    worker = Worker(box, print, config=WorkerConfig(concurrency=2))
    lease, errors = box.store.lease_now, []

    def slow_lease(*arguments, **options):
        """The other thread looks into the mailbox until the worker is told to end."""
        if threading.current_thread() is not runner and turn.turn._is_owned() is False:
            looking.set()
            eventually(worker._stop.is_set, 60, "the end of the worker")
        return lease(*arguments, **options)

    def run():
        try:
            worker.run(wait_time_seconds=0.01)
        except KeyboardInterrupt as error:
            errors.append(error)

    runner = threading.Thread(target=run, daemon=True)
    turn = StruckTurn(worker._shared.wait_lock, lambda: runner, looking)
    object.__setattr__(worker._shared, "wait_lock", turn)

    async def lease_slowly(*arguments, **options):
        return slow_lease(*arguments, **options)

    monkeypatch.setattr(box.store, "lease", lease_slowly, raising=False)
    runner.start()
    runner.join(60)
    assert not runner.is_alive()
    assert turn.struck
    assert len(errors) == 1
