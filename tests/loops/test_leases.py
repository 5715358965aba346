"""Leases that renew themselves."""

import logging
import math
import os
import sys
import threading
import time

import pytest

from testkit.threads import started_since, threads_now
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.runtime import (
    InMemoryMailbox,
    InvalidParameterError,
    LeaseExtender,
    LeaseExtenderConfig,
    LeaseLostError,
    MailboxConnectionError,
    ReceiptHandleExpiredError,
    Worker,
    current_lease,
)
from weakincentives.runtime.leases.extender import Lease
from weakincentives.runtime.leases.scheduler import (
    SCHEDULERS,
    LeaseScheduler,
    aligned,
    beat,
    next_beat,
)


class Duck:
    """All that a message needs."""

    id = "duck"

    def __init__(self, error=None):
        self.calls = []
        self.error = error

    def extend_visibility(self, timeout):
        self.calls.append(timeout)
        if self.error is not None:
            raise self.error
        return True


class Manual(LeaseScheduler):
    """A scheduler without a thread."""

    def wake(self):
        pass


def held():
    """How many leases this process keeps."""
    return sum(scheduler.held for scheduler in SCHEDULERS.all())


# --- arithmetic -----------------------------------------------------------------------------


@pytest.mark.parametrize("lease", [1.0, 2.0, 30.0, 300.0, 43_200.0])
@pytest.mark.parametrize("interval", [0.5, 60.0, 10_000.0])
def test_three_beats_fit_into_a_lease(lease, interval):
    now, beats = 0.0, 0
    while True:
        now += beat(interval, lease)
        if now >= lease:
            break
        beats += 1
    assert beats >= 3
    assert beat(interval, lease) <= interval


def test_a_beat_is_never_nothing():
    assert beat(60, 0.0) > 0
    assert beat(60, -5.0) > 0


def test_beats_meet():
    dues = {aligned(1000 + offset / 100, 60.0) for offset in range(600)}
    assert len(dues) <= 3
    for offset in range(600):
        due = 1000 + offset / 100
        assert due - 60 / 8 <= aligned(due, 60.0) <= due


@pytest.mark.parametrize("uptime", [10.0, 1e5, 1e7])
def test_beats_of_slightly_different_lengths_meet(uptime):
    """The leases of one batch: each is planned a little later, and has a little less left."""
    config = LeaseExtenderConfig(extension=60)
    plans = [(uptime + step / 1000, 60 - step / 1000) for step in range(200)]
    assert len({next_beat(now, config, remaining) for now, remaining in plans}) <= 2


# --- the specification's own tests ----------------------------------------------------------


def test_extends_at_the_interval():
    msg = Duck()
    with LeaseExtender(LeaseExtenderConfig(interval=0.05, extension=60)).extend(msg):
        eventually(lambda: len(msg.calls) >= 2)
    assert set(msg.calls) == {60}
    calls = len(msg.calls)
    time.sleep(0.12)
    assert len(msg.calls) == calls


def test_disabled():
    msg = Duck()
    before = held()
    with LeaseExtender(LeaseExtenderConfig(enabled=False)).extend(msg) as lease:
        assert held() == before
        assert current_lease() is lease
    assert msg.calls == []


def test_stops_on_an_expired_handle(caplog):
    msg = Duck(ReceiptHandleExpiredError())
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.03, extension=60))
    with caplog.at_level(logging.WARNING), extender.extend(msg) as lease:
        eventually(lambda: lease.lost)
        time.sleep(0.1)
        with pytest.raises(LeaseLostError, match="duck"):
            current_lease().raise_if_lost()
    assert len(msg.calls) == 1
    assert extender.counters.lost == 1
    assert "Lease extension failed for message duck: receipt handle expired" in caplog.text


def test_goes_on_after_other_errors(caplog):
    msg = Duck(RuntimeError("hiccup"))
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.03, extension=60))
    with extender.extend(msg) as lease:
        eventually(lambda: len(msg.calls) >= 3)
        assert not lease.lost
        msg.error = None
        eventually(lambda: extender.counters.extended)
    assert extender.counters.failed >= 3
    assert "Lease extension failed for message duck" in caplog.text


def test_the_log_line_of_the_specification(caplog):
    msg = Duck()
    with (
        caplog.at_level(logging.DEBUG, logger="weakincentives.runtime.leases.extender"),
        LeaseExtender(LeaseExtenderConfig(interval=0.02, extension=300)).extend(msg),
    ):
        eventually(lambda: msg.calls)
        eventually(lambda: "Extended visibility for message duck by 300 seconds" in caplog.text)


# --- real messages --------------------------------------------------------------------------


def test_a_message_is_kept_beyond_its_visibility():
    box = InMemoryMailbox("jobs")
    box.send("a")
    (msg,) = box.receive(visibility_timeout=1)
    deadline = msg._lease_deadline
    with LeaseExtender(LeaseExtenderConfig(extension=1)).extend(msg):
        eventually(lambda: time.monotonic() > deadline)
        assert box.receive() == []
    assert msg.acknowledge()


def test_many_leases_are_few_steps_per_mailbox():
    scheduler = Manual()
    extender = LeaseExtender(scheduler=scheduler)
    steps = []
    held = []
    for name in ("one", "two"):
        box = InMemoryMailbox(name)
        box.send_batch(list(range(700)))
        extend = box.store.extend
        box.store.extend = lambda handles, seconds, extend=extend: (
            steps.append(len(handles)),
            extend(handles, seconds),
        )[1]
        held += [extender.hold(msg) for msg in box.receive(max_messages=700, visibility_timeout=30)]
    scheduler.extend_due(time.monotonic() + 30)
    assert steps == [500, 200, 500, 200]
    assert extender.counters.extended == 1400
    assert all(lease.remaining() > 200 for lease in held)
    for lease in held:
        lease.release()
    assert scheduler.held == 0
    assert extender.counters.held == 0


def test_an_extension_never_shortens_a_lease():
    scheduler = Manual()
    box = FakeMailbox()
    box.send("a")
    (msg,) = box.receive(visibility_timeout=3600)
    lease = LeaseExtender(LeaseExtenderConfig(extension=10), scheduler=scheduler).hold(msg)
    scheduler.extend_due(math.inf)
    assert lease.remaining() == 3600
    box.advance(3595)
    lease.due = 0
    scheduler.extend_due(time.monotonic())
    assert lease.remaining() == 10


def test_a_lease_ends_at_its_maximum(caplog):
    scheduler = Manual()
    box = FakeMailbox()
    box.send("a")
    (msg,) = box.receive(visibility_timeout=30)
    config = LeaseExtenderConfig(extension=60, max_lease_seconds=100)
    extender = LeaseExtender(config, scheduler=scheduler)
    lease = extender.hold(msg)
    for _ in range(20):
        box.advance(10)
        lease.due = 0
        scheduler.extend_due(time.monotonic())
    assert lease.lost
    assert scheduler.held == 0
    assert extender.counters.given_up == 1
    assert "maximum of 100 seconds" in caplog.text
    assert box.receive()[0].delivery_count == 2


def test_refused_leases_are_lost_and_the_others_kept():
    scheduler = Manual()
    box = FakeMailbox()
    box.send_batch(["a", "b"])
    one, other = box.receive(max_messages=2, visibility_timeout=30)
    extender = LeaseExtender(scheduler=scheduler)
    leases = [extender.hold(one), extender.hold(other)]
    box.expire_handle(one.receipt_handle)
    scheduler.extend_due(math.inf)
    assert [lease.lost for lease in leases] == [True, False]
    assert scheduler.held == 1


def test_a_mailbox_that_is_away_is_asked_again():
    scheduler = Manual()
    box = FakeMailbox()
    box.send("a")
    (msg,) = box.receive(visibility_timeout=40)
    extender = LeaseExtender(scheduler=scheduler)
    lease = extender.hold(msg)
    box.set_connection_error(MailboxConnectionError("down"))
    scheduler.extend_due(math.inf)
    assert not lease.lost
    assert time.monotonic() < lease.due <= time.monotonic() + 10
    box.set_connection_error(None)
    scheduler.extend_due(math.inf)
    assert lease.remaining() == 300
    assert (extender.counters.failed, extender.counters.extended) == (1, 1)


def test_a_message_that_was_settled_meanwhile_is_not_reported_lost(caplog):
    scheduler = Manual()
    box = InMemoryMailbox("jobs")
    box.send("a")
    (msg,) = box.receive()
    extender = LeaseExtender(scheduler=scheduler)
    extender.hold(msg)
    msg.acknowledge()
    scheduler.extend_due(math.inf)
    assert msg.is_finalized
    assert extender.counters.lost == 0
    # and is not looked at again, or the thread would spin
    assert scheduler.held == 0


@pytest.mark.parametrize("is_async", [False, True])
def test_a_message_that_is_being_settled_is_not_reported_lost(is_async, monkeypatch, caplog):
    """Between the step that acknowledges it and the news of that, an extension is refused."""
    box = InMemoryMailbox("jobs")
    box.send("a")
    store, lease_now = box.store, box.store.lease_now

    def acknowledged(*arguments, acknowledge=(), **options):
        leases = lease_now(*arguments, acknowledge=acknowledge, **options)
        if acknowledge:
            settled.append(worker.lease_extender.scheduler_of(box).held)
            worker.lease_extender.scheduler_of(box).extend_due(math.inf)
        return leases

    async def handle_async(body):
        pass

    settled = []
    monkeypatch.setattr(store, "lease_now", acknowledged)
    worker = Worker(box, handle_async if is_async else lambda body: None)
    worker.run(max_iterations=2, wait_time_seconds=0)
    assert len(settled) == 1
    assert settled[0] >= 1  # and those of other workers in this process
    assert worker.lease_extender.counters.lost == 0
    assert not [record for record in caplog.records if "extension failed" in record.message]


def test_a_lease_can_be_adjusted():
    scheduler = Manual()
    box = FakeMailbox()
    box.send("a")
    (msg,) = box.receive(visibility_timeout=300)
    lease = LeaseExtender(scheduler=scheduler).hold(msg)
    far = lease.due
    lease.adjust(LeaseExtenderConfig(interval=1, extension=600))
    assert lease.due < far
    scheduler.extend_due(math.inf)
    assert lease.remaining() == 600
    lease.adjust(LeaseExtenderConfig(enabled=False))
    assert scheduler.held == 0


# --- the thread -----------------------------------------------------------------------------


def test_one_thread_for_all_and_none_when_nothing_is_held(monkeypatch):
    monkeypatch.setattr("weakincentives.runtime.leases.scheduler.IDLE_SECONDS", 0.05)
    scheduler = LeaseScheduler()
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.05), scheduler=scheduler)
    before = threads_now()
    ducks = [Duck() for _ in range(50)]
    leases = [extender.hold(duck) for duck in ducks]
    eventually(lambda: all(duck.calls for duck in ducks))
    assert started_since(before) == {scheduler.thread}
    for lease in leases:
        lease.release()
    eventually(lambda: scheduler.thread is None)
    with extender.extend(ducks[0]):
        calls = len(ducks[0].calls)
        eventually(lambda: len(ducks[0].calls) > calls)


def test_a_short_lease_is_not_overslept_because_of_a_long_one():
    scheduler = LeaseScheduler()
    slow, quick = Duck(), Duck()
    long = LeaseExtender(LeaseExtenderConfig(interval=60), scheduler=scheduler).hold(slow)
    eventually(lambda: scheduler._wakes_at < math.inf)
    short = LeaseExtender(LeaseExtenderConfig(interval=0.05), scheduler=scheduler).hold(quick)
    eventually(lambda: len(quick.calls) >= 2, within=30)
    long.release()
    short.release()


def test_a_lease_that_is_added_as_the_thread_ends_is_kept(monkeypatch):
    monkeypatch.setattr("weakincentives.runtime.leases.scheduler.IDLE_SECONDS", 0.05)

    class Leases(dict):
        """Somebody adds a lease just after the thread has seen that there are none."""

        def __len__(self):
            empty = not super().__len__()
            if empty and threading.current_thread() is scheduler.thread and not leases:
                adding = threading.Thread(target=lambda: leases.append(extender.hold(Duck())))
                adding.start()
                adding.join(60)
                return 0
            return super().__len__()

    scheduler = LeaseScheduler()
    extender = LeaseExtender(LeaseExtenderConfig(interval=60), scheduler=scheduler)
    leases = []
    scheduler._leases = Leases()
    scheduler.wake()
    eventually(lambda: leases and leases[0].due < math.inf)
    assert scheduler.thread is not None
    leases[0].release()


def test_the_thread_outlives_what_one_lease_does(monkeypatch, caplog):
    scheduler = LeaseScheduler()
    duck = Duck()
    extender = LeaseExtender(LeaseExtenderConfig(interval=0.05), scheduler=scheduler)
    broken = [True]
    original = Lease.next_extension

    def next_extension(self):
        if broken:
            broken.clear()
            raise RuntimeError("a bug")
        return original(self)

    monkeypatch.setattr(Lease, "next_extension", next_extension)
    with extender.extend(duck):
        eventually(lambda: duck.calls)
    assert "it continues" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_holds_nothing():
    with LeaseExtender().extend(Duck()):
        assert held() >= 1
        pid = os.fork()
        if pid == 0:
            os._exit(1 if SCHEDULERS.all() else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# --- current_lease --------------------------------------------------------------------------


def test_outside_a_handler_there_is_a_lease_without_end():
    lease = current_lease()
    assert not lease.lost
    assert lease.deadline == math.inf
    lease.raise_if_lost()


@pytest.mark.parametrize(
    "config",
    [
        {"interval": 0},
        {"interval": -1},
        {"extension": 0},
        {"extension": float("inf")},
        {"max_lease_seconds": 0},
    ],
)
def test_nonsense_is_refused(config):
    with pytest.raises(InvalidParameterError, match=next(iter(config))):
        LeaseExtenderConfig(**config)


def test_defaults_of_the_specification():
    config = LeaseExtenderConfig()
    assert (config.interval, config.extension, config.enabled) == (60.0, 300, True)


def test_first_beat_of_an_unknown_lease_follows_the_extension():
    config = LeaseExtenderConfig(interval=60, extension=8)
    lease = Lease(None, Duck(), config)
    assert 1 < next_beat(100.0, config, lease.remaining()) - 100.0 <= 2.0


@pytest.mark.parametrize("visibility", [0.5, 8, 30, 31])
@pytest.mark.parametrize("foreign", [False, True])
def test_a_short_lease_is_planned_at_once(visibility, foreign):
    lease = held_for(visibility, foreign)
    assert lease.due <= time.monotonic() + visibility / 4


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("interval", [10, 60])
def test_a_long_lease_is_planned_as_from_when_it_was_held(interval, foreign):
    before = time.monotonic()
    lease = held_for(300, foreign, interval=interval)
    held = time.monotonic()
    assert lease.due == math.inf
    lease.plan()
    assert before + interval * 7 / 8 - 0.1 <= lease.due <= held + interval


def held_for(visibility, foreign, **options):
    """Hold a message that was leased so long, without a thread."""
    message = Duck()
    if not foreign:
        box = InMemoryMailbox("jobs")
        box.send(1)
        (message,) = box.receive(visibility_timeout=visibility)
    config = LeaseExtenderConfig(extension=visibility, **options)
    return LeaseExtender(config, scheduler=Manual()).hold(message)


def test_ten_thousand_leases_cost_little():
    """A minute of it, at the default interval, in the time that it takes to do the work."""
    scheduler = Manual()
    extender = LeaseExtender(scheduler=scheduler)
    box = InMemoryMailbox("jobs")
    leases = []
    for _ in range(10):
        box.send_batch(list(range(1000)))
        messages = box.receive(max_messages=1000, visibility_timeout=300)
        leases += [extender.hold(message) for message in messages]
    now = time.monotonic()
    cpu = time.thread_time()
    # It wakes every few seconds, and each lease is due once.
    for second in range(5, 66, 5):
        scheduler.extend_due(now + second)
        scheduler._next_due()
    assert extender.counters.extended >= 10_000
    assert time.thread_time() - cpu < 3 * 0.05 * 60


def test_a_handler_that_holds_the_gil_loses_its_lease_and_harms_nobody():
    box, replies = InMemoryMailbox("jobs"), InMemoryMailbox("replies")
    box.send("a", reply_to=replies)
    interval = sys.getswitchinterval()

    def handler(body):
        # No other thread runs while this one is busy: the switch interval is longer than that.
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            pass
        return body

    sys.setswitchinterval(10)
    try:
        Worker(box, handler).run(max_iterations=1, visibility_timeout=0.1)
    finally:
        sys.setswitchinterval(interval)
    assert replies.stats().total == 0
    (again,) = box.receive()
    assert again.delivery_count == 2
