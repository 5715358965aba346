"""What a watchdog and a readiness probe hear of a real loop while it works, waits and settles."""

import threading

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.runtime import (
    InMemoryMailbox,
    LeaseExtenderConfig,
    MailboxConnectionError,
    Watchdog,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.mailbox.testing import FakeClock

WITHIN = 300.0


class Patient:
    """A handler that works until it is told to stop."""

    def __init__(self):
        self.began = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, body):
        self.began.set()
        self.go_on.wait(30)


def timed(worker):
    """Let the pulse of a loop go by a clock of the test's."""
    clock = worker.heartbeat.clock = FakeClock()
    worker.heartbeat.beat()
    return clock


@pytest.mark.parametrize("settings", [{}, {"batch": 5}, {"concurrency": 3}])
def test_a_long_job_whose_lease_is_kept_is_ready_and_one_whose_broker_is_away_is_not(settings):
    box = InMemoryMailbox("jobs")
    box.send_batch(["a", "b", "c"])
    handler, extend = Patient(), box.store.extend
    worker = Worker(box, handler, config=WorkerConfig(**settings))
    clock, heart = timed(worker), worker.heartbeat
    with in_background(worker, visibility_timeout=2, wait_time_seconds=0):
        assert handler.began.wait(120)
        eventually(lambda: worker.lease_extender.counters.held == 3 or not settings)
        clock.advance(10 * WITHIN)
        eventually(lambda: heart.trouble(WITHIN) is None)

        def refuse(handles, seconds):
            raise MailboxConnectionError("away")

        box.store.extend = refuse
        reason = "its last lease extension failed with MailboxConnectionError"
        eventually(lambda: heart.trouble(WITHIN) == reason)
        box.store.extend = extend
        eventually(lambda: heart.trouble(WITHIN) is None)
        # An extension is no sign of life of the job: a watchdog waits for its own.
        assert heart.elapsed() >= 10 * WITHIN
        handler.go_on.set()


def test_a_long_job_whose_lease_nobody_keeps_is_not_ready():
    box = InMemoryMailbox("jobs")
    box.send("a")
    handler = Patient()
    config = WorkerConfig(lease_extender=LeaseExtenderConfig(enabled=False))
    worker = Worker(box, handler, config=config)
    clock = timed(worker)
    with in_background(worker, wait_time_seconds=0):
        assert handler.began.wait(120)
        clock.advance(WITHIN + 1)
        assert worker.heartbeat.trouble(WITHIN) == "has not reached its mailbox for 301 s"
        handler.go_on.set()


def test_looks_that_fail_are_not_outshone_by_extensions():
    box = InMemoryMailbox("jobs")
    box.send("a")
    handler, lease = Patient(), box.store.lease
    worker = Worker(box, handler, config=WorkerConfig(concurrency=2))
    failed = threading.Event()

    def refuse(*args, **options):
        failed.set()
        raise MailboxConnectionError("away")

    with in_background(worker, visibility_timeout=1.2, wait_time_seconds=0):
        assert handler.began.wait(120)
        box.store.lease = refuse
        assert failed.wait(120)
        eventually(lambda: not worker.heartbeat.reaches)
        extended = worker.lease_extender.counters.extended
        eventually(lambda: worker.lease_extender.counters.extended > extended + 2)
        assert "its last receive failed" in worker.heartbeat.trouble(WITHIN)
        box.store.lease = lease
        eventually(lambda: worker.heartbeat.trouble(WITHIN) is None)
        handler.go_on.set()


def test_a_loop_that_settles_again_and_again_does_not_look_as_if_it_hung():
    box = FakeMailbox()
    box.send("a")

    def handler(body):
        box.set_connection_error(MailboxConnectionError("away"))
        raise LookupError("nothing")

    worker = Worker(box, handler)
    clock = timed(worker)
    dog = Watchdog([worker], threshold=20, clock=clock)
    tries, release = [], box.store.release

    def slow_release(handles, delay):
        """Take fifteen seconds to find out that nobody answers."""
        for _ in range(5):
            clock.advance(3)
            tries.append(dog.check())
        clock.advance(0.5)
        if len(tries) == 20:
            box.set_connection_error(None)
        return release(handles, delay)

    box.store.release = slow_release
    worker.run(max_iterations=1, wait_time_seconds=0)
    assert len(tries) == 20
    assert not any(tries)


def test_a_look_that_waits_for_its_broker_does_not_look_as_if_it_hung():
    box = InMemoryMailbox("jobs")
    worker = Worker(box, print)
    clock = timed(worker)
    dog = Watchdog([worker], threshold=25, clock=clock)
    hung, lease = [], box.store.lease

    def slow_lease(*args, **options):
        """Take long to find out that nobody answers."""
        for _ in range(10):
            clock.advance(3)
            hung.append(dog.check())
        clock.advance(0.5)
        return lease(*args, **options)

    box.store.lease = slow_lease
    worker.run(max_iterations=3, wait_time_seconds=0)
    assert len(hung) >= 30
    assert not any(hung)


def test_a_look_that_never_ends_is_found():
    worker = Worker(InMemoryMailbox("jobs"), print)
    clock = timed(worker)
    dog = Watchdog([worker], threshold=25, clock=clock)
    worker._runs = 1
    with worker.heartbeat.looking(20):
        found = []
        for _ in range(40):
            clock.advance(3)
            found.append(dog.check())
    assert found[-1] == [worker]
    assert found[10] == []
