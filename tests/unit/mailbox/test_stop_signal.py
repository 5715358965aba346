"""A signal that ends one loop's receives."""

import threading
import time

from tests.support.waiting import eventually

from weakincentives.runtime.mailbox import InMemoryMailbox
from weakincentives.runtime.mailbox.waiting import StopSignal


def test_it_ends_the_receive_that_was_given_it_and_no_other():
    box = InMemoryMailbox("jobs")
    stop, other = StopSignal(), StopSignal()
    ended = []

    def wait(signal: StopSignal) -> None:
        box.exchange((), wait_time_seconds=20, stop=signal)
        ended.append(signal)

    threads = [threading.Thread(target=wait, args=(signal,)) for signal in (stop, other)]
    for thread in threads:
        thread.start()
    eventually(lambda: len(box._listeners) == 2)
    started = time.monotonic()
    stop.set()
    threads[0].join(10)
    assert time.monotonic() - started < 3
    assert ended == [stop]
    other.set()
    threads[1].join(10)
    assert ended == [stop, other]


def test_given_before_it_ends_what_comes_later():
    stop = StopSignal()
    stop.set()
    started = time.monotonic()
    assert InMemoryMailbox("jobs").exchange((), wait_time_seconds=20, stop=stop) == []
    assert time.monotonic() - started < 3
    assert stop.wait(20)


def test_saying_takes_no_lock():
    stop = StopSignal()
    with stop._lock:
        stop.say()
    assert stop.is_set()
    assert not stop.wait(0)


def test_first_is_called_before_the_acknowledgement_also_when_closed():
    for close in (False, True):
        box = InMemoryMailbox("jobs")
        box.send("a")
        (message,) = box.receive()
        seen = []
        if close:
            box.close()
        box.exchange([message], first=lambda: seen.append(message.is_finalized))  # noqa: B023
        assert seen == [False]
        assert message.is_finalized


def test_if_first_fails_nothing_is_acknowledged():
    box = InMemoryMailbox("jobs")
    box.send("a")
    (message,) = box.receive()
    try:
        box.exchange([message], first=lambda: 1 / 0)
    except ZeroDivisionError:
        pass
    assert not message.is_finalized
    assert message.acknowledge()


def test_extend_batch_says_which_leases_are_gone():
    box = InMemoryMailbox("jobs")
    box.send_batch([1, 2])
    one, two = box.receive(max_messages=2)
    one.acknowledge()
    assert box.extend_batch([one, two], 60) == [False, True]
    assert one.is_finalized
    assert two.acknowledge()
