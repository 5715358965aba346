"""What a job has of the time that its user wrote, and what is said if it was not enough."""

import logging
import threading
import time

import pytest

from testkit.startstop import Crew
from testkit.waiting import eventually
from weakincentives.runtime import InMemoryMailbox, LoopGroup, Worker, current_lease

from .loops import SmallLoop, loop

TIMEOUT = 1.0


class UntilCutOff:
    """A handler that works until its message is taken away, and notes when that was."""

    def __init__(self):
        self.entered, self.cut = threading.Event(), threading.Event()
        self.cut_at = 0.0

    def __call__(self, body):
        lease = current_lease()
        self.entered.set()
        eventually(lambda: lease.lost, within=120)
        self.cut_at = time.monotonic()
        self.cut.set()
        return "late"


def in_groups(worker, depth):
    for _ in range(depth):
        worker = LoopGroup([worker])
    return worker


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_a_job_has_all_of_the_time_that_was_written(depth):
    box, job = InMemoryMailbox("jobs"), UntilCutOff()
    box.send("job")
    loop = in_groups(Worker(box, job), depth)
    with Crew() as crew:
        crew.add(loop.run)
        assert job.entered.wait(120)
        began = time.monotonic()
        assert loop.shutdown(timeout=TIMEOUT) is False
        assert job.cut.wait(120)
    assert job.cut_at - began >= TIMEOUT
    assert [waiting.body for waiting in box.peek()] == ["job"]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_group_that_cut_off_a_job_is_not_drained(depth):
    """Though all of its threads have ended."""
    box, job = InMemoryMailbox("jobs"), UntilCutOff()
    box.send("job")
    group = in_groups(Worker(box, job), depth)
    with Crew() as crew:
        crew.add(group.run)
        assert job.entered.wait(120)
        assert not group.shutdown(timeout=0.1)
        eventually(lambda: not group.running)
        assert not group.drained
    assert not group.drained


def test_the_log_says_what_was_given_back_and_whose_result_is_dropped(caplog):
    box, job = InMemoryMailbox("jobs"), UntilCutOff()
    id = box.send("job")
    worker = Worker(box, job)
    with caplog.at_level(logging.WARNING), Crew() as crew:
        crew.add(worker.run)
        assert job.entered.wait(120)
        assert not worker.shutdown(timeout=0.1)
        eventually(lambda: not worker.running)
    assert (
        "jobs: the deadline of the shutdown has passed, so 1 unfinished message is given back; "
        "results of jobs that still run are dropped" in caplog.text
    )
    assert f"Message {id}: the shutdown settled it at its deadline" in caplog.text
    assert "its lease was lost" not in caplog.text


def test_a_shutdown_that_never_returns_does_not_keep_the_group(caplog):
    forever = threading.Event()

    class Endless(SmallLoop):
        def shutdown(self, *, timeout=30.0):
            super().shutdown(timeout=timeout)
            forever.wait(60)
            return True

    group = LoopGroup([Endless(InMemoryMailbox("jobs")), loop()])
    with Crew() as crew:
        crew.add(group.run)
        eventually(lambda: all(leaf.loop.running for leaf in group._leaves))
        try:
            began = time.monotonic()
            group.shutdown(timeout=0.1)
            eventually(lambda: not group.running, within=120)
            assert time.monotonic() - began < 30
        finally:
            forever.set()
