"""A signal that ends one loop's receives."""

import asyncio
import threading
import time

from testkit.waiting import eventually
from weakincentives.runtime.mailbox import InMemoryMailbox
from weakincentives.runtime.mailbox.seam.waiting import StopSignal


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
    threads[0].join(60)
    assert time.monotonic() - started < 10
    assert ended == [stop]
    other.set()
    threads[1].join(60)
    assert ended == [stop, other]


def test_given_before_it_ends_what_comes_later():
    stop = StopSignal()
    stop.set()
    started = time.monotonic()
    assert InMemoryMailbox("jobs").exchange((), wait_time_seconds=20, stop=stop) == []
    assert time.monotonic() - started < 10
    assert stop.wait(120)


def test_saying_takes_no_lock():
    stop = StopSignal()
    with stop._lock:
        stop.say()
    assert stop.is_set()
    assert stop.wait(120)


def test_an_exchange_with_a_closed_mailbox_settles_and_takes_nothing():
    box = InMemoryMailbox("jobs")
    box.send_batch(["a", "b"])
    (message,) = box.receive()
    box.close()
    assert box.exchange([message], wait_time_seconds=5) == []
    assert message.is_finalized
    assert box.stats().pending == 1


def test_extend_batch_says_which_leases_are_gone():
    box = InMemoryMailbox("jobs")
    box.send_batch([1, 2])
    one, two = box.receive(max_messages=2)
    one.acknowledge()
    assert box.extend_batch([one, two], 60) == [False, True]
    assert one.is_finalized
    assert two.acknowledge()


def test_extend_batch_async_does_the_same():
    box = InMemoryMailbox("orders")
    box.send_batch(["tea", "milk"])
    one, two = box.receive(max_messages=2)
    one.acknowledge()
    assert asyncio.run(box.extend_batch_async([one, two], 60)) == [False, True]
