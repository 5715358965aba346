"""One thread of the process works while the others hold nothing."""

import threading
import weakref
from contextvars import Context

import pytest

from testkit.waiting import eventually
from weakincentives.runtime.mailbox.seam.waiting import StopSignal
from weakincentives.runtime.worker import quarantine
from weakincentives.runtime.worker.quarantine import Quarantine


class Holder:
    in_event_loop = False

    def __init__(self, busy=False):
        self.busy = busy
        self.beats = 0

    def is_busy(self):
        return self.busy

    def beat(self):
        self.beats += 1


@pytest.fixture
def room():
    return Quarantine()


def in_thread(call, *args):
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


def join_elsewhere(room, holder):
    """Join as a thread that is none of this test's: the ids of ended ones come again."""
    room.join(holder)
    room._holders[weakref.ref(holder)] = -1


def test_whoever_wants_to_be_alone_waits_for_the_others(room):
    me, other = Holder(), Holder(busy=True)
    room.join(me)
    join_elsewhere(room, other)
    began = threading.Event()
    thread = in_thread(lambda: room.begin(me, StopSignal()) and began.set())
    eventually(lambda: room.owner is me)
    assert room.is_anothers(other)
    assert not room.is_anothers(me)
    assert not began.is_set()
    other.busy = False
    thread.join(120)
    assert began.is_set()


def test_only_one_is_alone_and_the_others_wait_for_it(room):
    me, other = Holder(), Holder()
    assert room.begin(me, StopSignal())
    assert not Context().run(room.begin, other, StopSignal())
    thread = in_thread(room.wait, other, StopSignal())
    assert thread.is_alive()
    room.end(other)  # it had not been alone
    assert room.owner is me
    room.end(me)
    thread.join(120)
    assert not thread.is_alive()
    assert room.begin(other, StopSignal())


def test_a_thread_does_not_wait_for_what_it_holds_itself(room):
    """As a job that runs its own loop does."""
    outer, inner = Holder(busy=True), Holder()
    room.join(outer)
    room.join(inner)
    assert room.begin(inner, StopSignal())


def test_nobody_waits_for_ever(room, monkeypatch):
    """A job may be waiting for another one, which waits for it to be over."""
    monkeypatch.setattr(quarantine, "LONGEST", 0.05)
    me, other = Holder(), Holder(busy=True)
    join_elsewhere(room, other)
    assert room.begin(me, StopSignal())
    in_thread(room.wait, other, StopSignal()).join(60)
    eventually(room.is_overdue)
    assert not room.is_anothers(other)


def test_the_end_of_the_loop_ends_the_wait(room):
    stop = StopSignal()
    join_elsewhere(room, Holder(busy=True))
    thread = in_thread(room.begin, Holder(), stop)
    stop.set()
    thread.join(120)
    assert not thread.is_alive()


def test_who_leaves_keeps_nobody_waiting(room):
    me = Holder()
    room.join(me)
    assert room.begin(me, StopSignal())
    room.leave(me)
    assert room.owner is None


def test_whoever_waits_beats_meanwhile(room):
    me, other, third = Holder(), Holder(busy=True), Holder()
    room.join(me)
    join_elsewhere(room, other)
    threads = [in_thread(room.begin, me, StopSignal())]
    eventually(lambda: me.beats > 2)
    threads.append(in_thread(room.wait, third, StopSignal()))
    eventually(lambda: third.beats > 2)
    other.busy = False
    room.end(me)
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()


def test_who_was_interrupted_before_it_could_leave_is_not_waited_for(room):
    gone, alone = Holder(busy=True), Holder()
    join_elsewhere(room, gone)
    del gone
    thread = in_thread(room.begin, alone, StopSignal())
    thread.join(120)
    assert not thread.is_alive()
