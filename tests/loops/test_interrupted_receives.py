"""An interrupt at any moment leaves no message in nobody's hands."""

import linecache
import math
import random
import signal
import sys
import threading
from contextlib import suppress

import pytest

from chaos.points import Points
from testkit.bytecode import jumps_back
from testkit.interrupts import sparing_coverage
from weakincentives import connect
from weakincentives.clock import SystemClock
from weakincentives.contrib.mailbox.sqlite import database, store
from weakincentives.runtime import (
    DLQPolicy,
    InMemoryMailbox,
    MailboxConnectionError,
    Worker,
    WorkerConfig,
    current_lease,
)
from weakincentives.runtime.mailbox import receive
from weakincentives.runtime.mailbox.seam.waiting import LATEST_LEASES
from weakincentives.runtime.worker import inbox, quarantine, thread
from weakincentives.runtime.worker import worker as worker_module

pytestmark = [
    # An interrupt that strikes in a callback of the collector is lost: Python only says so.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer"),
    pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(),
        reason="signals need the main thread",
    ),
]
# Not those of the store in memory, where an interrupt can come after calls only.
OURS = tuple(module.__file__ for module in (worker_module, thread, inbox, receive, store, database))


def interrupt(number, frame):
    raise KeyboardInterrupt


@pytest.fixture(params=["memory", "sqlite"])
def backend(request, tmp_path):
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/q.db"
    with connect(url) as backend:
        yield backend


@pytest.fixture
def interrupts():
    before = signal.signal(signal.SIGALRM, sparing_coverage(interrupt))
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def worker_of(backend, handler=str):
    policy = DLQPolicy(backend.mailbox("dead"), max_delivery_count=2)
    return Worker(backend.mailbox("jobs"), handler, dlq=policy, config=WorkerConfig(batch=3))


def only_opens_a_block(frame):
    """Whether a line begins or ends a `with`, or is a `try`: no signal can come just there."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return line.lstrip().startswith(("with ", "try:"))


class AtLine:
    """Sends this process a signal at the n-th line that a loop runs, or none if there are fewer."""

    def __init__(self, n, files=OURS):
        self.left = n
        self.files = files

    def __call__(self, frame, event, arg):
        if frame.f_code.co_filename not in self.files:
            return None
        if event == "line" and not only_opens_a_block(frame):
            self.left -= 1
            if self.left == 0:
                signal.raise_signal(signal.SIGALRM)
        return self


def test_an_interrupt_at_any_line_of_a_loop_leaves_nothing_in_flight(backend, interrupts):
    jobs = backend.mailbox("jobs")
    for n in range(1, 100_000, 7):
        jobs.send_batch([1, 2, 3, 4])
        at_line, before = AtLine(n), sys.gettrace()
        sys.settrace(at_line)
        try:
            worker_of(backend).run(max_iterations=2, wait_time_seconds=0)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        stats = jobs.stats()
        assert stats.in_flight == 0, n
        assert current_lease().deadline == math.inf, "the lease of an interrupted job is left"
        assert all(waiting.delivery_count == 0 for waiting in jobs.peek(10)), n
        jobs.purge()
        if at_line.left > 0:
            break
    assert n > 150


def test_an_interrupt_at_any_line_leaves_no_thread_of_a_loop_behind(backend, interrupts):
    """Not even in its very last lines: a job that must run alone would wait for it."""
    for n in range(1, 100_000):
        worker = worker_of(backend)
        at_line, before = AtLine(n, (thread.__file__, quarantine.__file__)), sys.gettrace()
        sys.settrace(at_line)
        try:
            worker.run(max_iterations=1, wait_time_seconds=0)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        assert threading.get_ident() not in quarantine.QUARANTINE._holders.values(), n
        assert worker._shared.threads == {}, n
        assert LATEST_LEASES.store is None, n
        if at_line.left > 0:
            break
    assert n > 30


class Jumps(Points):
    """Only those where a loop of the worker, or one that it calls, begins anew."""

    def is_point(self, code, before, offset):
        return code.co_filename in OURS and offset in jumps_back(code)


def test_an_interrupt_where_a_loop_begins_anew_leaves_nothing_behind(backend, interrupts):
    """Python guards some of these jumps by no `try` and no `with`, though they are inside one."""
    jobs = backend.mailbox("jobs")
    for n in range(1, 100_000):
        jobs.send_batch([1, 2, 3, 4])
        strike = Jumps(True, n, lambda: signal.raise_signal(signal.SIGALRM))
        with suppress(KeyboardInterrupt), strike:
            worker_of(backend).run(max_iterations=3, wait_time_seconds=0.001)
        assert jobs.stats().in_flight == 0, n
        jobs.purge()
        if not strike.has_struck:
            break
    assert n > 5


def test_interrupts_at_random_make_no_dead_letters(backend, interrupts):
    jobs, dead, draw = backend.mailbox("jobs"), backend.mailbox("dead"), random.Random(1)
    for _ in range(60):
        jobs.send_batch(list(range(200)))
        worker = worker_of(backend)
        try:
            signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.01))
            worker.run(max_iterations=100, wait_time_seconds=0)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            pass
        assert jobs.stats().in_flight == 0
        assert worker.lease_extender.counters.extended == 0
    assert dead.stats().total == 0


def test_what_was_taken_in_hand_in_part_goes_back_in_its_order(backend):
    jobs, worker = backend.mailbox("jobs"), worker_of(backend)
    jobs.send_batch([1, 2, 3, 4])
    hold, held = worker.lease_extender.hold, []

    def interrupted_hold(message, leases):
        if held:
            raise KeyboardInterrupt
        held.append(message)
        return hold(message, leases)

    worker.lease_extender.hold = interrupted_hold
    with pytest.raises(KeyboardInterrupt):
        worker.run(wait_time_seconds=0)
    assert [waiting.body for waiting in jobs.peek(10)] == [1, 2, 3, 4]


def test_what_a_receive_has_leased_before_it_failed_goes_back_uncounted(backend, monkeypatch):
    jobs, deliveries, failures, opened = backend.mailbox("jobs"), [], [], receive.opened
    jobs.send_batch([1, 2, 3])

    def fail_once(*leased):
        if not failures:
            failures.append(leased)
            raise MailboxConnectionError("cut off")
        return opened(*leased)

    def handler(body):
        deliveries.append((body, current_lease().message.delivery_count))

    monkeypatch.setattr(receive, "opened", fail_once)
    worker_of(backend, handler).run(max_iterations=2, wait_time_seconds=0)
    assert failures
    assert deliveries == [(1, 1), (2, 1), (3, 1)]


class InterruptingClock(SystemClock):
    """Raises an interrupt the next time that it is asked for the date."""

    armed = False

    def time(self):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt
        return super().time()


class Rival:
    """Receives as soon as a loop is told to stop: before that gives back what it has."""

    def __init__(self, jobs):
        self.jobs = jobs
        self.received = []

    def interrupt(self):
        thread = threading.Thread(target=self.receive)
        thread.start()
        thread.join()

    def receive(self):
        self.received = self.jobs.receive(max_messages=10)


def test_what_another_consumer_received_meanwhile_stays_its_own():
    clock = InterruptingClock()
    jobs = InMemoryMailbox("jobs", clock=clock)
    jobs.send_batch([1, 2])
    worker, rival = Worker(jobs, str, config=WorkerConfig(batch=2)), Rival(jobs)
    worker._stop.add(rival)
    clock.armed = True  # the next to ask is the receive, once it has found two messages
    with pytest.raises(KeyboardInterrupt):
        worker.run(wait_time_seconds=0)
    assert [message.body for message in rival.received] == [1, 2]
    assert jobs.acknowledge_batch(rival.received) == [True, True]
