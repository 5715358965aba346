import asyncio
import sys
import threading
import time
from types import FrameType
from typing import Any

import pytest

from testkit.waiting import eventually
from weakincentives.runtime.mailbox.seam.store import Leases
from weakincentives.runtime.mailbox.seam.waiting import (
    SHORTEST_PAUSE,
    Bell,
    Ear,
    StopSignal,
    next_pause,
)

LONG = 30.0


@pytest.mark.parametrize(
    ("remaining", "interval", "due", "pause"),
    [
        (20.0, 1.0, None, 1.0),
        (0.5, 1.0, None, 0.5),
        (20.0, 1.0, 0.2, 0.2),
        (0.1, 1.0, 0.2, 0.1),
        (20.0, 1.0, 5.0, 1.0),
        (20.0, 1.0, 0.0, SHORTEST_PAUSE),
        (20.0, 1.0, -3.0, SHORTEST_PAUSE),
        (0.0, 1.0, None, 0.0),
        (-1.0, 1.0, None, 0.0),
        (-1.0, 1.0, 0.0, 0.0),
    ],
)
def test_how_long_a_consumer_may_wait(
    remaining: float, interval: float, due: float | None, pause: float
) -> None:
    assert next_pause(remaining, interval, due) == pause


class Waiter:
    """A thread that waits at a bell; what woke it is read after `join`."""

    def __init__(self, bell: Bell) -> None:
        self.bell = bell
        self.ear = Ear(bell)
        self.ear.wait(0)  # the first wait of an ear returns at once
        self.thread = threading.Thread(target=self.ear.wait, args=(LONG,), daemon=True)
        self.thread.start()
        eventually(lambda: self.ear in bell._waiting)

    @property
    def awake(self) -> bool:
        return not self.thread.is_alive()


def test_a_new_ear_looks_at_once() -> None:
    started = time.monotonic()
    Ear(Bell()).wait(LONG)
    assert time.monotonic() - started < LONG / 3


def test_a_wait_ends_by_itself() -> None:
    bell = Bell()
    ear = Ear(bell)
    ear.wait(0)
    ear.wait(0.01)
    assert not bell._waiting


def test_a_ring_wakes_one_longest_waiting_first() -> None:
    bell = Bell()
    waiters = [Waiter(bell) for _ in range(3)]
    bell.ring()
    eventually(lambda: waiters[0].awake)
    assert not waiters[1].awake
    assert not waiters[2].awake
    bell.ring(times=5)
    eventually(lambda: all(waiter.awake for waiter in waiters))


def test_ring_all_wakes_everybody() -> None:
    bell = Bell()
    waiters = [Waiter(bell) for _ in range(3)]
    bell.ring_all()
    eventually(lambda: all(waiter.awake for waiter in waiters))


def test_no_ring_is_missed_between_two_waits() -> None:
    bell = Bell()
    ear = Ear(bell)
    ear.wait(0)
    bell.ring()
    started = time.monotonic()
    ear.wait(LONG)
    assert time.monotonic() - started < LONG / 3


def test_an_interrupt_ends_this_wait_and_every_later_one() -> None:
    bell = Bell()
    waiter, other = Waiter(bell), Waiter(bell)
    waiter.ear.interrupt()
    eventually(lambda: waiter.awake)
    assert not other.awake
    started = time.monotonic()
    waiter.ear.wait(LONG)
    assert time.monotonic() - started < LONG / 3
    bell.ring()
    eventually(lambda: other.awake)


def test_a_ring_can_be_passed_on() -> None:
    bell = Bell()
    first, second = Waiter(bell), Waiter(bell)
    bell.ring()
    eventually(lambda: first.awake)
    first.ear.pass_on()
    eventually(lambda: second.awake)


def test_waiting_in_an_event_loop() -> None:
    async def main() -> None:
        bell = Bell()
        ears = [Ear(bell) for _ in range(3)]
        for ear in ears:
            await ear.wait_async(LONG)
        rung, interrupted, timed_out = ears
        tasks = [asyncio.create_task(ear.wait_async(LONG)) for ear in (rung, interrupted)]
        while len(bell._waiting) < 2:
            await asyncio.sleep(0)
        await asyncio.to_thread(bell.ring)
        await tasks[0]
        assert not tasks[1].done()
        await asyncio.to_thread(interrupted.interrupt)
        await tasks[1]
        await timed_out.wait_async(0.01)
        assert not bell._waiting

    asyncio.run(asyncio.wait_for(main(), LONG))


def test_a_cancelled_wait_leaves_the_bell() -> None:
    async def main() -> None:
        bell = Bell()
        ear = Ear(bell)
        await ear.wait_async(0)
        task = asyncio.create_task(ear.wait_async(LONG))
        while not bell._waiting:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not bell._waiting

    asyncio.run(main())


def test_ringing_for_a_loop_that_is_gone_harms_nobody() -> None:
    bell = Bell()
    ear = Ear(bell)
    ear.wait(0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(ear.wait_async(LONG))
    loop.run_until_complete(asyncio.sleep(0))
    assert bell._waiting
    waiting = dict(bell._waiting)
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    bell._waiting.update(waiting)
    bell.ring()


def test_no_wake_up_is_lost_between_threads() -> None:
    """Each ring follows an item, as a put does: a waiter that slept through one would hang."""
    bell, items, taken = Bell(), [], []
    lock = threading.Lock()

    def consume() -> None:
        ear = Ear(bell)
        while True:
            ear.wait(LONG)
            with lock:
                while items:
                    taken.append(items.pop())
                if len(taken) >= 2000:
                    bell.ring_all()
                    return

    consumers = [threading.Thread(target=consume, daemon=True) for _ in range(3)]
    for consumer in consumers:
        consumer.start()
    for n in range(2000):
        with lock:
            items.append(n)
        bell.ring()
    for consumer in consumers:
        consumer.join(LONG)
        assert not consumer.is_alive()
    assert sorted(taken) == list(range(2000))


class Heard:
    """A listener that counts how often it was interrupted."""

    times = 0

    def interrupt(self) -> None:
        self.times += 1

    async def lease(self, count: int, seconds: float, wait: float) -> Leases:
        return Leases(())

    def close(self) -> None:
        pass


@pytest.mark.parametrize("step", ["add", "discard"])
def test_a_signal_handler_may_stop_a_receive_that_it_interrupts(step: str) -> None:
    """At any line: the handler runs in the thread that has the lock."""
    stop, listener = StopSignal(), Heard()
    lines: list[int] = []
    code = getattr(StopSignal, step).__code__

    def strike(frame: FrameType, event: str, _: object) -> Any:
        if event == "line" and frame.f_code is code:
            lines.append(frame.f_lineno)
            stop.set()
        return strike

    def receive() -> None:
        sys.settrace(strike)
        getattr(stop, step)(listener)

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert len(lines) > 1
    assert listener.times or step == "discard"
