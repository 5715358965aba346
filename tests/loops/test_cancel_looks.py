"""When the thread that keeps leases asks which messages were cancelled."""

from types import SimpleNamespace

import pytest

from weakincentives.runtime import InMemoryMailbox, LeaseExtenderConfig
from weakincentives.runtime.leases import scheduler as module
from weakincentives.runtime.leases.extender import LeaseExtender
from weakincentives.runtime.leases.scheduler import LeaseScheduler
from weakincentives.runtime.mailbox.capabilities import Capabilities


@pytest.fixture
def looks(monkeypatch):
    """A scheduler without a thread, a lease that it keeps, and when it asked."""
    scheduler, asked = LeaseScheduler(), []
    monkeypatch.setattr(scheduler, "wake", lambda: None)
    box = InMemoryMailbox("jobs")
    box.send("tea")
    (message,) = box.receive()
    now = SimpleNamespace(value=0.0)
    monkeypatch.setattr(
        box, "_lease_states", lambda some: asked.append(now.value) or ["held"] * len(some)
    )
    LeaseExtender(LeaseExtenderConfig(), scheduler=scheduler).hold(message)

    def look(at):
        now.value = at
        scheduler.look_for_cancels(at)
        return list(asked)

    return SimpleNamespace(look=look, box=box, scheduler=scheduler)


def test_a_job_is_asked_for_at_the_first_look_and_every_four_seconds(looks):
    assert looks.look(100.0) == [100.0]
    assert looks.look(101.0) == [100.0]
    assert looks.look(104.0) == [100.0, 104.0]
    assert looks.scheduler._next_look(104.0) == 108.0
    # It never sleeps for longer than that, so that a handler is told within five seconds.
    assert module.IDLE_SECONDS <= module.LOOK_FOR_CANCELS_SECONDS < 5


def test_replies_are_asked_for_less_often_where_the_queue_cannot_say(looks):
    looks.box.capabilities = Capabilities(cancels=False)
    assert looks.look(100.0) == []
    assert looks.look(112.0) == [112.0]
    assert looks.look(126.0) == [112.0]
    assert looks.look(127.0) == [112.0, 127.0]


def test_a_cancel_in_this_process_is_looked_for_at_once(looks):
    looks.look(100.0)
    looks.scheduler.look_soon()
    assert looks.look(100.5) == [100.0, 100.5]
