"""Event loops that others use in their own way: cancelled again and again, eager, closed."""

import asyncio
import sys
import threading

import pytest

from testkit.waiting import eventually
from weakincentives.runtime import DLQPolicy, InMemoryMailbox, Worker, WorkerConfig
from weakincentives.runtime.leases.scheduler import SCHEDULERS
from weakincentives.runtime.worker import event_loop, time_limits


async def until(condition):
    """Look again and again, as `eventually` does, without blocking the event loop."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.005)


def test_a_run_that_is_cancelled_again_and_again_gives_its_jobs_back():
    """As a cancel scope of anyio does until the task has ended."""
    box = InMemoryMailbox("jobs")
    box.send_batch([1, 2, 3])
    begun, cleaned = [], []

    async def handle(body):
        begun.append(body)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
            cleaned.append(body)

    worker = Worker(box, handle, config=WorkerConfig(concurrency=10))

    async def main():
        running = asyncio.create_task(worker.run_async())
        await until(lambda: len(begun) == 3)
        while not running.done():
            running.cancel()
            await asyncio.sleep(0)
        assert running.cancelled()

    asyncio.run(main())
    assert sorted(cleaned) == [1, 2, 3]
    messages = box.receive(max_messages=10)
    assert sorted(message.body for message in messages) == [1, 2, 3]
    assert {message.delivery_count for message in messages} == {1}  # as if never received
    assert SCHEDULERS.of(box.store).held == 0
    assert worker.lease_extender.counters.held == 0


def test_a_run_that_is_cancelled_while_it_ends_its_jobs_is_cancelled():
    """Else what follows it would go on, and whoever cancelled it would wait for that."""
    box = InMemoryMailbox("jobs")
    box.send("job")

    async def main():
        begun, cleaning, cleaned = asyncio.Event(), asyncio.Event(), asyncio.Event()

        async def handle(body):
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await cleaned.wait()

        worker = Worker(box, handle)
        running = asyncio.create_task(worker.run_async())
        await asyncio.wait_for(begun.wait(), 60)
        stopping = asyncio.create_task(worker.shutdown_async(timeout=0.01))
        await asyncio.wait_for(cleaning.wait(), 60)
        running.cancel()
        await asyncio.sleep(0)
        cleaned.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await stopping is False
        assert not worker.running

    asyncio.run(main())
    assert box.stats().pending == 1


def test_the_lease_of_a_job_that_fails_while_its_run_is_cancelled_is_released():
    box = InMemoryMailbox("jobs")
    box.send("job")

    async def handle(body):
        begun.set()
        await asyncio.Event().wait()

    worker = Worker(box, handle, config=WorkerConfig(time_limit=0.05))

    async def main():
        running = asyncio.create_task(worker.run_async())
        await asyncio.wait_for(begun.wait(), 60)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    begun = asyncio.Event()
    asyncio.run(main())
    assert box.peek(1) == []  # it waits for its retry
    assert worker.lease_extender.counters.held == 0


def test_the_time_limit_of_a_job_that_was_given_back_means_nothing(monkeypatch, caplog):
    monkeypatch.setattr(event_loop, "FINALLY_SECONDS", 0.01)
    monkeypatch.setattr(time_limits, "FINALLY_SECONDS", 0.01)
    box = InMemoryMailbox("jobs")
    box.send("stubborn")

    async def main():
        begun, cancels = asyncio.Event(), []

        async def handle(body):
            begun.set()
            while len(cancels) < 2:  # the second one comes at the time limit
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    cancels.append(body)
            await asyncio.sleep(0.1)  # the limit's last word comes meanwhile

        worker = Worker(box, handle, config=WorkerConfig(time_limit=1))
        running = asyncio.create_task(worker.run_async())
        await asyncio.wait_for(begun.wait(), 60)
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        with pytest.raises(asyncio.CancelledError):
            await running
        await until(lambda: len(cancels) == 2)
        await until(lambda: "its result is dropped" in caplog.text)
        assert worker.lease_extender.counters.held == 0

    asyncio.run(main())
    assert box.stats().pending == 1


def test_a_job_that_takes_long_to_end_does_not_keep_the_others_leased():
    """A process that is given less time would leave them all to be counted as crashed."""
    box = InMemoryMailbox("jobs")
    replies = [box.send_expecting_reply(body) for body in ("slow", "prompt", "saved")]

    async def main():
        begun, cleaned = [], asyncio.Event()

        async def handle(body):
            begun.append(body)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if body == "saved":
                    return body
                raise
            finally:
                if body == "slow":
                    await cleaned.wait()

        worker = Worker(box, handle, config=WorkerConfig(concurrency=3))
        running = asyncio.create_task(worker.run_async())
        await until(lambda: len(begun) == 3)
        for _ in range(2):
            running.cancel()
            await asyncio.sleep(0)
        await until(lambda: box.stats().pending)
        assert box.stats().pending == 1  # not that of the slow one too
        await until(replies[2].is_ready)
        assert not running.done()
        cleaned.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert worker.lease_extender.counters.held == 0

    asyncio.run(main())
    assert {message.body for message in box.peek(10)} == {"slow", "prompt"}
    assert replies[2].wait(timeout=60) == "saved"


def test_no_job_is_started_when_the_others_are_being_ended(monkeypatch):
    """It would run on after the run, and its message would stay leased."""
    box, letters = InMemoryMailbox("jobs"), InMemoryMailbox("letters")
    box.send("suspect")
    box.receive(visibility_timeout=0.02)
    eventually(lambda: box.stats().pending == 1)
    begun = []

    async def handle(body):
        begun.append(body)

    worker = Worker(box, handle, dlq=DLQPolicy(letters, max_delivery_count=3))
    inbox = worker._loop_inbox
    exchange = inbox.exchange_async

    async def main():
        receives, received, ending = [], asyncio.Event(), asyncio.Event()

        async def slow(*arguments):
            messages = await exchange(*arguments)
            receives.append(messages)
            if len(receives) == 2:  # the suspect's own, after it was given back
                received.set()
                await ending.wait()
            return messages

        monkeypatch.setattr(inbox, "exchange_async", slow)
        running = asyncio.create_task(worker.run_async())
        await asyncio.wait_for(received.wait(), 60)
        for _ in range(2):  # the second time, at once
            running.cancel()
            await asyncio.sleep(0)
        ending.set()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(main())
    assert begun == []
    assert box.stats().pending == 1
    assert worker.lease_extender.counters.held == 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no eager tasks before Python 3.12")
def test_jobs_in_a_loop_that_starts_tasks_eagerly():
    box = InMemoryMailbox("jobs")
    box.send_batch(list(range(20)))
    done = []

    async def handle(body):
        if body % 2:
            await asyncio.sleep(0)
        done.append(body)

    worker = Worker(box, handle, config=WorkerConfig(concurrency=3))

    async def main():
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)
        async with asyncio.timeout(60):
            running = asyncio.create_task(worker.run_async())
            await until(lambda: box.stats().total == 0)
            await worker.shutdown_async()
            await running

    asyncio.run(main())
    assert sorted(done) == list(range(20))


def test_a_shutdown_in_the_moment_when_the_loop_is_closed():
    """It has seen the loop among those to be told, and then the loop is gone."""
    box = InMemoryMailbox("jobs")
    told = threading.Event()

    async def handle(body):
        pass

    worker = Worker(box, handle)

    class Late:
        def interrupt(self):
            told.set()

    async def main():
        loop = event_loop.WorkerLoop(worker._shared, worker._loop_inbox, run, 1)
        loop._loop = Racing(asyncio.get_running_loop())
        return loop

    class Racing:
        """A loop that is closed just after it was looked at."""

        def __init__(self, loop):
            self._loop, self._looks = loop, 0

        def is_closed(self):
            self._looks += 1
            return self._looks > 1 or self._called

        _called = False

        def call_soon_threadsafe(self, call):
            self._called = True
            raise RuntimeError("Event loop is closed")

    run = worker._run_of(None, 60, 0)
    loop = asyncio.run(main())
    worker._stop.add(loop)
    worker._stop.add(Late())
    worker._stop.set()
    assert told.is_set()


def test_a_run_that_cannot_be_watched_leaves_nothing_behind(monkeypatch):
    box = InMemoryMailbox("jobs")

    async def handle(body):
        pass

    worker = Worker(box, handle)

    def no_thread(name):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(event_loop.LOOP_WATCH, "watch", no_thread)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        worker.run()
    assert not worker._shared.loops
    left = [holder for holder, _ in event_loop.QUARANTINE._present()]
    assert not any(isinstance(holder, event_loop.WorkerLoop) for holder in left)
