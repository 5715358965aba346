"""Leases of several backends: what happens to one is nothing to the others."""

import gc
import os
import threading
import time

import pytest

from testkit.locks import locked
from testkit.waiting import eventually
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.runtime import (
    InMemoryMailbox,
    LeaseExtender,
    LeaseExtenderConfig,
    MailboxConnectionError,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.leases.scheduler import LeaseScheduler, LeaseSchedulers

LEASE = 1.5


class Hanging:
    """A message of another kind, whose broker does not answer until it is told to."""

    id = "hanging"

    def __init__(self):
        self.asked, self.answer = threading.Event(), threading.Event()

    def extend_visibility(self, timeout):
        self.asked.set()
        self.answer.wait(30)


class Quick:
    """A message of yet another kind."""

    id = "quick"

    def __init__(self):
        self.calls = 0

    def extend_visibility(self, timeout):
        self.calls += 1


def test_a_file_that_is_locked_costs_no_lease_elsewhere(tmp_path):
    boxes = [SQLiteMailbox(name, path=tmp_path / f"{name}.db") for name in ("locked", "free")]
    extender = LeaseExtender(LeaseExtenderConfig(extension=LEASE))
    for box in boxes:
        box.send("a")
    lost, free = [extender.hold(box.receive(visibility_timeout=LEASE)[0]) for box in boxes]
    with locked(tmp_path / "locked.db"):
        eventually(lambda: lost.lost)
        assert not free.lost
        deadline = free.deadline
        eventually(lambda: free.deadline > deadline)
    assert boxes[1].receive() == []
    assert free.message.acknowledge()
    for lease in (lost, free):
        lease.release()
    for box in boxes:
        box.close()


def test_one_that_hangs_delays_no_other_kind():
    hanging, quick = Hanging(), Quick()
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.05))
    with extender.extend(hanging):
        assert hanging.asked.wait(120)
        with extender.extend(quick):
            eventually(lambda: quick.calls > 3)
    # Nor does it delay the end of its own.
    assert not hanging.answer.is_set()
    hanging.answer.set()


def test_threads_are_as_many_as_backends_and_go_with_the_leases(tmp_path, monkeypatch):
    monkeypatch.setattr("weakincentives.runtime.leases.scheduler.IDLE_SECONDS", 0.05)
    schedulers = LeaseSchedulers()  # not those in which other tests may have left leases
    monkeypatch.setattr("weakincentives.runtime.leases.extender.SCHEDULERS", schedulers)
    files = [tmp_path / "one.db", tmp_path / "two.db"]
    boxes = [SQLiteMailbox(f"q{n}", path=path) for path in files for n in range(10)]
    boxes += [InMemoryMailbox(f"q{n}") for n in range(10)]
    extender, leases = LeaseExtender(), []
    for box in boxes:
        box.send_batch(["a"] * 3)
        messages = box.receive(max_messages=3, visibility_timeout=LEASE)
        leases += [extender.hold(message) for message in messages]
    threads = {scheduler.thread for scheduler in schedulers.all()}
    assert len(threads) == len(schedulers.all()) == 3
    eventually(lambda: extender.counters.extended >= len(leases))
    for lease in leases:
        lease.release()
    eventually(lambda: not schedulers.all())
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    for box in boxes:
        box.close()


def test_what_ends_first_is_asked_for_first_and_again_after_a_failure():
    """Four mailboxes of one dead backend: the attempts go where they are needed most."""
    scheduler = LeaseScheduler()
    scheduler.wake = lambda: None
    extender = LeaseExtender(scheduler=scheduler)
    asked = []

    def refuse(name):
        def extend(handles, seconds):
            asked.append(name)
            raise MailboxConnectionError("away")

        return extend

    leases = []
    for name, visibility in (("long", 100), ("short", 20), ("middle", 60)):
        box = InMemoryMailbox(name)
        box.send("a")
        leases.append(extender.hold(box.receive(visibility_timeout=visibility)[0]))
        box.store.extend = refuse(name)
    for lease in leases:
        lease.due = 0
    rounds = []
    while any(lease.due <= time.monotonic() for lease in leases):
        scheduler.extend_due(time.monotonic())
        rounds.append(list(asked))
    # One attempt in a round; what is most urgent is then found anew.
    assert rounds == [["short"], ["short", "middle"], ["short", "middle", "long"]]


# --- no thread left -------------------------------------------------------------------------


@pytest.fixture
def no_threads(monkeypatch):
    """Let the start of a lease extender's thread fail while the list holds something."""
    failing, start = [True], threading.Thread.start

    def refuse(thread):
        if failing and thread.name == "lease-extender":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return failing


def test_a_thread_that_could_not_be_started_is_tried_again_with_the_next_lease(no_threads, caplog):
    extender = LeaseExtender(
        LeaseExtenderConfig(interval=0.05), scheduler=LeaseSchedulers().of(object())
    )
    one, other = Quick(), Quick()
    with extender.extend(one) as lease:
        assert "no thread can be started to extend leases" in caplog.text
        assert lease.scheduler.thread is None
        no_threads.clear()
        with extender.extend(other):
            eventually(lambda: one.calls and other.calls)


def test_a_thread_that_could_not_be_started_is_started_by_another(no_threads, monkeypatch):
    monkeypatch.setattr("weakincentives.runtime.leases.scheduler.RETRY_SECONDS", 0.02)
    schedulers = LeaseSchedulers()
    config = LeaseExtenderConfig(interval=0.05)
    no_threads.clear()
    lively, lonely = Quick(), Quick()
    with LeaseExtender(config, scheduler=schedulers.of("a")).extend(lively):
        eventually(lambda: lively.calls)
        no_threads.append(True)
        with LeaseExtender(config, scheduler=schedulers.of("b")).extend(lonely) as lease:
            calls = lively.calls
            eventually(lambda: lively.calls > calls + 5)
            assert lonely.calls == 0
            assert lease.scheduler.thread is None
            no_threads.clear()
            eventually(lambda: lonely.calls)


def test_a_worker_takes_no_job_whose_lease_it_could_not_keep(no_threads):
    box = InMemoryMailbox("jobs")
    box.send("a")
    scheduler = LeaseSchedulers().of(object())
    worker = Worker(box, print)
    worker.lease_extender = LeaseExtender(scheduler=scheduler)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.run(max_iterations=1)
    assert not worker.running
    assert box.stats().pending == 1


def test_threads_that_were_started_end_if_another_cannot_be(monkeypatch):
    box = InMemoryMailbox("jobs")
    lanes, start = [], threading.Thread.start

    def refuse_the_third(thread):
        if thread.name == "worker-3":
            raise RuntimeError("can't start new thread")
        if thread.name.startswith("worker-"):
            lanes.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_third)
    worker = Worker(box, print, config=WorkerConfig(concurrency=4))
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.run()
    assert len(lanes) == 2
    assert not any(thread.is_alive() for thread in lanes)
    assert worker.shutdown(timeout=10)


class Loop:
    """Whoever uses a scheduler."""


def test_who_leaves_without_having_entered_takes_nobody_elses_thread():
    """As a loop does that was interrupted on its way in."""
    scheduler, one, interrupted = LeaseSchedulers().of(object()), Loop(), Loop()
    scheduler.enter(one)
    scheduler.leave(interrupted)
    scheduler.wake()
    assert scheduler.thread is not None
    scheduler.leave(one)
    scheduler.wake()
    eventually(lambda: scheduler.thread is None)


def test_who_was_interrupted_while_leaving_keeps_no_thread():
    scheduler, one = LeaseSchedulers().of(object()), Loop()
    scheduler.enter(one)
    del one
    gc.collect()
    scheduler.wake()
    eventually(lambda: scheduler.thread is None)


def test_an_idle_worker_has_its_thread_before_it_has_a_job(no_threads, monkeypatch):
    """A process that has run out of threads by then keeps its leases all the same."""
    monkeypatch.setattr("weakincentives.runtime.leases.scheduler.IDLE_SECONDS", 0.02)
    no_threads.clear()
    box = InMemoryMailbox("jobs")
    kept = []

    def handler(body):
        deadline = worker.lease_extender.counters.extended + 3
        eventually(lambda: worker.lease_extender.counters.extended >= deadline)
        kept.append(body)

    worker = Worker(box, handler)
    worker.lease_extender = LeaseExtender(scheduler=LeaseSchedulers().of(object()))
    thread = threading.Thread(
        target=worker.run, kwargs={"visibility_timeout": 1.2, "wait_time_seconds": 5}
    )
    thread.start()
    eventually(lambda: worker.heartbeat.reaches)
    no_threads.append(True)
    time.sleep(0.1)  # longer than a thread without leases lingers
    box.send("a")
    eventually(lambda: kept == ["a"])
    assert worker.shutdown(timeout=60)
    thread.join(120)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_keeps_leases_of_its_own():
    hanging = Hanging()
    with LeaseExtender(LeaseExtenderConfig(interval=0.05)).extend(hanging):
        assert hanging.asked.wait(120)
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                quick = Quick()
                with LeaseExtender(LeaseExtenderConfig(interval=0.05)).extend(quick):
                    eventually(lambda: quick.calls > 1)
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        hanging.answer.set()
