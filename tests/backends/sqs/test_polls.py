"""Long polls: left at once, handed on, and never more threads than promised."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

import pytest

from testkit.cloud import REGION, Cloud
from testkit.servers.aws import ENVIRONMENT
from testkit.waiting import eventually
from weakincentives.clock import SystemClock
from weakincentives.contrib.mailbox.contract.driver import background
from weakincentives.contrib.mailbox.sqs import SQSMailbox
from weakincentives.contrib.mailbox.sqs.long_polls import MAX_POLLS, LongPollListener, LongPolls
from weakincentives.contrib.mailbox.sqs.polls_in_progress import (
    POLLS_IN_PROGRESS,
    PollInProgress,
    end_of,
)
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import MailboxError, MailboxResolutionError
from weakincentives.runtime.mailbox.seam.store import Leased, Leases
from weakincentives.runtime.mailbox.testing import driven


class Slow:
    """A queue whose polls end when the test says so."""

    clock = SystemClock()
    look_interval = 20.0

    def __init__(self, *, fifo: bool = False) -> None:
        self.fifo = fifo
        self.answers: SimpleQueue[Leases] = SimpleQueue()
        self.released: list[str] = []
        self.extend_error: Exception | None = None

    def receive(self, count: int, seconds: float, wait: int) -> Leases:
        return self.answers.get(timeout=30)

    async def extend(self, handles: Sequence[str], seconds: float) -> list[bool]:
        if self.extend_error is not None:
            raise self.extend_error
        return [True] * len(handles)

    async def release(self, handles: Sequence[str], delay: float, how: str) -> list[bool]:
        assert how == "undone"
        self.released += handles
        return [True] * len(handles)


def leases(*handles: str) -> Leases:
    return Leases([Leased(h, h, b"", 1, 0, 0.0, 0.0) for h in handles], at=1.0)


def polls() -> int:
    """Count the calls that wait at SQS."""
    return len(POLLS_IN_PROGRESS)


def threads() -> int:
    return sum(thread.name == "sqs-long-poll" for thread in threading.enumerate())


@pytest.fixture(autouse=True)
def _nobody_polls() -> None:
    eventually(lambda: polls() == 0 and threads() == 0, within=120)


def poll_begun(cloud: Cloud) -> None:
    eventually(lambda: cloud.ledger.calls["ReceiveMessage"] > 0)


def test_closing_ends_a_long_poll_within_a_second(ministack: Cloud) -> None:
    box = ministack.mailbox()
    waiting = background(box.receive, wait_time_seconds=11)
    poll_begun(ministack)
    started = time.monotonic()
    box.close()
    assert waiting.result(120) == []
    assert time.monotonic() - started < 10


def test_what_a_poll_left_behind_brings_is_given_back(ministack: Cloud) -> None:
    box, other = ministack.mailbox("left-behind"), ministack.mailbox("left-behind")
    waiting = background(box.receive, wait_time_seconds=5, visibility_timeout=600)
    poll_begun(ministack)
    box.close()
    assert waiting.result(120) == []
    other.send("for whoever is there")
    (message,) = other.receive(wait_time_seconds=20)
    assert message.body == "for whoever is there"
    assert message.acknowledge() is True


def test_a_poll_left_behind_serves_the_next_wait_of_its_mailbox(ministack: Cloud) -> None:
    box = ministack.mailbox()

    async def main() -> Any:
        first = asyncio.create_task(box.receive_async(wait_time_seconds=20))
        await asyncio.to_thread(poll_begun, ministack)
        started = time.monotonic()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert time.monotonic() - started < 10
        second = asyncio.create_task(
            box.receive_async(wait_time_seconds=20, visibility_timeout=120)
        )
        await box.send_async("once")
        return await second

    (message,) = asyncio.run(main())
    assert (message.body, message.delivery_count) == ("once", 1)
    assert message._lease_deadline - box.store.clock.monotonic() > 100
    assert ministack.ledger.calls["ReceiveMessage"] == 1
    assert ministack.ledger.calls["ChangeMessageVisibilityBatch"] == 1
    assert message.acknowledge() is True


def test_a_hundred_waits_take_few_threads_and_leave_the_executor_free(ministack: Cloud) -> None:
    box = ministack.mailbox()

    async def main() -> None:
        waiting = [
            asyncio.create_task(box.receive_async(wait_time_seconds=8, visibility_timeout=60))
            for _ in range(100)
        ]
        await asyncio.to_thread(eventually, lambda: polls() == MAX_POLLS)
        async with asyncio.timeout(60):
            await box.send_async("now")
        done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert [[m.body for m in task.result()] for task in done] == [["now"]]
        assert threads() == MAX_POLLS
        started = time.monotonic()
        box.close()
        assert [await task for task in rest] == [[]] * len(rest)
        assert time.monotonic() - started < 7

    asyncio.run(main())


def test_more_waiters_than_polls_are_all_served(ministack: Cloud) -> None:
    box = ministack.mailbox()
    count = MAX_POLLS + 8

    async def main() -> list[Any]:
        waiting = [
            asyncio.create_task(box.receive_async(wait_time_seconds=20, visibility_timeout=60))
            for _ in range(count)
        ]
        await asyncio.to_thread(eventually, lambda: polls() == MAX_POLLS)
        await box.send_batch_async(list(range(count)))
        return [message.body for task in waiting for message in await task]

    assert sorted(asyncio.run(main())) == list(range(count))


def test_an_error_reaches_everyone_who_waits(ministack: Cloud) -> None:
    box = ministack.mailbox("gone-soon")
    ministack.admin.delete_queue(QueueUrl=ministack.queue("gone-soon"))
    waiting = [background(box.receive, wait_time_seconds=20) for _ in range(3)]
    for each in waiting:
        with pytest.raises(MailboxResolutionError, match="gone-soon"):
            each.result(120)


def test_a_server_that_does_not_wait_is_not_asked_without_end(ministack: Cloud) -> None:
    class Impatient:
        def __getattr__(self, name: str) -> Any:
            return getattr(ministack.sqs, name)

        def receive_message(self, *, WaitTimeSeconds: int, **request: Any) -> Any:
            return ministack.sqs.receive_message(WaitTimeSeconds=0, **request)

    box: SQSMailbox[Any, Any] = SQSMailbox(ministack.queue(), Impatient())
    assert box.receive(wait_time_seconds=3) == []
    assert ministack.ledger.calls["ReceiveMessage"] <= 5


def test_a_poll_that_nobody_waits_for_may_fail(ministack: Cloud) -> None:
    box = ministack.mailbox("fails-alone")
    waiting = background(box.receive, wait_time_seconds=5)
    poll_begun(ministack)
    box.close()
    assert waiting.result(120) == []
    ministack.admin.delete_queue(QueueUrl=ministack.queue("fails-alone"))
    eventually(lambda: polls() == 0, within=120)


PROGRAM = """
import sys, threading
from weakincentives import connect
from weakincentives.runtime import Worker
url, queue, how, wait, within = sys.argv[1:]
backend = connect(url)
box = backend.mailbox(queue)
worker = Worker(box, print)
begun = threading.Event()

def note(request, **_):
    if b'"WaitTimeSeconds": 0' not in request.body:
        begun.set()

backend._sqs.meta.events.register("before-send.sqs.ReceiveMessage", note)
asked = {"visibility_timeout": 600, "wait_time_seconds": int(wait)}
if box.approximate_count():  # so that the queue is known to be in use
    assert box.receive(**asked)[0].acknowledge()
    begun.clear()
target = worker.run if how == "shutdown" else box.receive
thread = threading.Thread(target=target, kwargs=asked)
thread.start()
assert begun.wait(120)
backend.close() if how == "close" else worker.shutdown(timeout=float(within))
thread.join(120)
print("stopped", flush=True)
"""


def exiting(cloud: Cloud, queue: str, how: str, wait: int = 20, within: float = 60) -> Any:
    """Start a program that stops in the middle of a poll, and is about to exit."""
    url = f"sqs://{REGION}?endpoint={cloud.endpoint}"
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, url, queue, how, str(wait), str(within)],
        env={**os.environ, **ENVIRONMENT},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "stopped\n"
    return child


def test_a_process_exits_at_once_while_its_queue_is_empty(cloud: Cloud) -> None:
    box = cloud.mailbox()
    with exiting(cloud, box.name, "close") as child:
        stopped = time.monotonic()
        assert child.wait(120) == 0
    assert time.monotonic() - stopped < 10  # its poll has twenty seconds
    box.send("for the next worker")
    # The poll may have leased it, although its process is gone, but for ten seconds and not 600.
    (message,) = box.receive(wait_time_seconds=20)
    assert message.body == "for the next worker"


def test_a_message_after_a_pause_has_the_lease_that_was_asked_for(cloud: Cloud) -> None:
    box = cloud.mailbox()
    waiting = background(box.receive, wait_time_seconds=20, visibility_timeout=120)
    poll_begun(cloud)
    box.send(1)
    (message,) = waiting.result(120)
    assert box.store._held.until(message.receipt_handle) > box.store.clock.monotonic() + 60
    assert cloud.ledger.calls["ChangeMessageVisibilityBatch"] == 1
    box.send(2)
    (message,) = box.receive(wait_time_seconds=20, visibility_timeout=120)
    assert cloud.ledger.calls["ChangeMessageVisibilityBatch"] == 1


@pytest.mark.parametrize("how", ["shutdown", "close"])
def test_what_the_last_poll_of_a_process_leases_is_given_back(cloud: Cloud, how: str) -> None:
    box = cloud.mailbox()
    box.send("before")
    with exiting(cloud, box.name, how) as child:
        with suppress(subprocess.TimeoutExpired):  # were it to exit now, its poll would go on
            child.wait(3)
        box.send("for the next worker")
        with suppress(TimeoutError):  # the poll leases it before this process can
            eventually(lambda: box.stats().in_flight == 1, within=3)
        assert child.wait(120) == 0
    (message,) = box.receive(wait_time_seconds=20)
    # The first delivery was to the poll of the process that was about to exit.
    assert (message.body, message.delivery_count) == ("for the next worker", 2)
    assert message.acknowledge() is True


def test_a_process_exits_when_its_poll_has_ended(ministack: Cloud) -> None:
    started = time.monotonic()
    box = ministack.mailbox()
    box.send("before")
    with exiting(ministack, box.name, "shutdown", wait=2) as child:
        assert child.wait(120) == 0
    assert time.monotonic() - started < 60


def test_a_process_exits_at_the_deadline_of_its_shutdown(ministack: Cloud) -> None:
    box = ministack.mailbox()
    box.send("before")
    with exiting(ministack, box.name, "shutdown", within=0.5) as child:
        stopped = time.monotonic()
        assert child.wait(120) == 0
    assert time.monotonic() - stopped < 10


def test_until_when_an_exit_waits() -> None:
    poll = PollInProgress(20)
    assert end_of(poll, 0.0) == poll.latest_end
    assert end_of(poll, poll.began - 1) == poll.latest_end
    assert end_of(poll, poll.began + 3) == poll.began + 3
    assert end_of(poll, poll.began + 300) == poll.latest_end


def test_a_forked_child_polls_for_itself(ministack: Cloud) -> None:
    box = ministack.mailbox()
    parents = box.store.listen()._polls
    box.store._pid = -1  # as a child finds it
    assert box.store.listen()._polls is not parents
    box.send(1)
    assert [message.body for message in box.receive(wait_time_seconds=5)] == [1]


def test_leases_that_cannot_be_given_back_are_no_error(
    ministack: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    box = ministack.mailbox()
    box.send(1)
    (message,) = box.receive(wait_time_seconds=5)

    def refuse(**_: Any) -> None:
        raise MailboxError("not now")

    ministack.sqs.meta.events.register("before-call.sqs.ChangeMessageVisibilityBatch", refuse)
    box.store._polls._give_back([message._leased])
    assert "come back when their leases end" in caplog.text


def wait(line: LongPolls, count: int, seconds: float, wait: float) -> Leases:
    return driven(LongPollListener(line, in_loop=False).lease(count, seconds, wait))


def test_a_wait_ends_in_time_although_its_poll_does_not() -> None:
    queue = Slow()
    line = LongPolls(queue)
    assert wait(line, 1, 30, 0.6) == Leases(())
    assert asyncio.run(LongPollListener(line, in_loop=True).lease(1, 30, 0.6)) == Leases(())
    queue.answers.put(leases("late"))
    eventually(lambda: queue.released == ["late"])


def test_the_rest_of_a_second_is_waited_for_without_a_call() -> None:
    queue = Slow()
    listeners = [LongPollListener(LongPolls(queue), in_loop=in_loop) for in_loop in (False, True)]
    for listener in listeners:
        queue.answers.put(Leases(()))
        asyncio.run(listener.lease(1, 30, 0.5))
    started = time.monotonic()
    for listener in listeners:
        assert asyncio.run(listener.lease(1, 30, 0.2)) == Leases(())
    assert time.monotonic() - started > 0.35


def test_a_poll_that_brings_more_than_one_waiter_wants_serves_several() -> None:
    queue = Slow()
    line = LongPolls(queue)
    waiting = [background(wait, line, 2, 30, 10) for _ in range(2)]
    eventually(lambda: polls() == 2)
    queue.answers.put(leases("a", "b", "c", "d", "e"))
    taken = [[m.handle for m in each.result(120).messages] for each in waiting]
    assert sorted(map(len, taken)) == [2, 2]
    eventually(lambda: queue.released == ["e"])
    queue.answers.put(Leases((), at=1.0))


def test_what_a_poll_brings_of_a_fifo_queue_has_one_holder() -> None:
    queue = Slow(fifo=True)
    line = LongPolls(queue)
    waiting = [background(wait, line, 1, 30, 100) for _ in range(2)]
    eventually(lambda: polls() == 2)
    queue.answers.put(leases("a1", "a2", "a3"))
    eventually(lambda: queue.released == ["a2", "a3"])
    eventually(lambda: any(each.done() for each in waiting))
    assert sum(each.done() for each in waiting) == 1
    queue.answers.put(leases("a2"))
    taken = [m.handle for each in waiting for m in each.result(120).messages]
    assert sorted(taken) == ["a1", "a2"]


def test_a_group_has_one_holder_although_a_receive_was_cancelled(cloud: Cloud) -> None:
    box = cloud.mailbox(f"q-{new_id()}.fifo")
    gates = [threading.Event(), threading.Event()]
    asked = {"wait_time_seconds": 20, "visibility_timeout": 10}
    calls = iter(gates[:1])

    def late(**_: Any) -> None:
        # The first poll reaches SQS when all is sent, the others when its messages are handed on.
        next(calls, gates[1]).wait(60)

    cloud.sqs.meta.events.register("before-send.sqs.ReceiveMessage", late)

    async def main() -> None:
        first = asyncio.create_task(box.receive_async(max_messages=10, **asked))
        await asyncio.to_thread(poll_begun, cloud)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        waiting = [asyncio.create_task(box.receive_async(**asked)) for _ in range(2)]
        await box.send_batch_async([1, 2, 3])
        gates[0].set()
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        (held,) = done.pop().result()
        assert held.body == 1
        await asyncio.to_thread(eventually, released)
        assert not any(task.done() for task in others)
        await held.acknowledge_async()
        gates[1].set()
        (following,) = await others.pop()
        assert following.body == 2
        await following.acknowledge_async()

    def released() -> bool:
        return cloud.ledger.calls["ChangeMessageVisibilityBatch"] == 1

    try:
        asyncio.run(main())
    finally:
        gates[1].set()


def test_a_thread_takes_one_poll_after_the_other() -> None:
    queue = Slow()
    line = LongPolls(queue)
    for n in range(20):
        queue.answers.put(leases(str(n)))
        assert len(wait(line, 1, 30, 10).messages) == 1
        assert threads() == 1


def test_a_lease_that_cannot_be_made_longer_fails_its_waiter() -> None:
    queue = Slow()
    queue.extend_error = MailboxError("cut")
    line = LongPolls(queue)
    first = LongPollListener(line, in_loop=False)
    waiting = background(lambda: driven(first.lease(1, 30, 10)))
    eventually(lambda: polls() == 1)
    first.interrupt()
    assert waiting.result(120) == Leases(())
    second = background(wait, line, 1, 60, 10)
    eventually(lambda: len(line._line) == 1)
    queue.answers.put(leases("a"))
    with pytest.raises(MailboxError, match="cut"):
        second.result(120)


def test_a_wait_that_is_broken_off_gives_back_what_comes() -> None:
    queue = Slow()
    line = LongPolls(queue)

    async def main() -> None:
        task = asyncio.create_task(LongPollListener(line, in_loop=True).lease(1, 30, 10))
        await asyncio.to_thread(eventually, lambda: polls() == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    queue.answers.put(leases("a"))
    eventually(lambda: queue.released == ["a"])


class Interrupt(Exception):
    """What a signal handler raises."""


@pytest.mark.parametrize("step", [(threading.Thread, "start"), (LongPolls, "join")])
def test_an_interrupt_of_a_receive_loses_nothing(
    step: tuple[type, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Slow()
    line = LongPolls(queue)
    original = getattr(*step)

    def interrupted(*args: Any) -> None:
        original(*args)
        monkeypatch.undo()
        raise Interrupt

    monkeypatch.setattr(*step, interrupted)
    with pytest.raises(Interrupt):
        wait(line, 1, 30, 10)
    queue.answers.put(leases("a"))
    eventually(lambda: queue.released == ["a"])
    queue.answers.put(leases("b"))
    assert [message.handle for message in wait(line, 1, 30, 10).messages] == ["b"]


def test_a_signal_handler_may_end_a_wait_that_just_begins() -> None:
    queue = Slow()
    line = LongPolls(queue)
    listener = LongPollListener(line, in_loop=False)

    class Line(list[Any]):
        def append(self, waiter: Any) -> None:
            super().append(waiter)
            listener.interrupt()  # as a handler does that runs in this thread

    line._line = Line()
    waiting = background(lambda: driven(listener.lease(1, 30, 10)))
    assert waiting.result(60) == Leases(())
