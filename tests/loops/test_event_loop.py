"""Async handlers: all jobs of a worker are tasks of one event loop."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives import connect
from weakincentives.ids import new_id
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    InMemoryMailbox,
    InvalidParameterError,
    LeaseExtenderConfig,
    MailboxConnectionError,
    UnsupportedOperationError,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.worker import blocked_loop, event_loop

SOON = Backoff(base=0, cap=0)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def backend(request, tmp_path) -> Iterator[Any]:
    if request.param == "memory":
        url = "memory://"
    elif request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.db?durability=normal"
    else:
        url = request.getfixturevalue("redis_url")
    with connect(url) as backend:
        yield backend


@pytest.fixture
def jobs(backend):
    return backend.mailbox(f"jobs-{new_id()}")  # the server is that of other tests too


class Gate:
    """An async handler that stays until it is let go, and counts who is in it."""

    def __init__(self) -> None:
        self.inside: list[Any] = []
        self.done: list[Any] = []
        self.cut_off: list[Any] = []
        self.open = threading.Event()

    async def __call__(self, body: Any) -> Any:
        self.inside.append(body)
        try:
            while not self.open.is_set():
                await asyncio.sleep(0.005)
            self.done.append(body)
            return body
        except asyncio.CancelledError:
            self.cut_off.append(body)
            raise


def test_what_a_handler_forgot_to_await_is_awaited():
    """Else its message would be acknowledged, and the work never done."""
    box = InMemoryMailbox("jobs")

    async def work(body):
        await asyncio.sleep(0)
        return body + 1

    async def handle(body):
        return work(body)

    reply = box.send_expecting_reply(1)
    Worker(box, handle).run(max_iterations=1, wait_time_seconds=0)
    assert reply.wait(timeout=60) == 2


def test_a_generator_is_no_result(caplog):
    box = InMemoryMailbox("jobs")

    def lazily(body):
        yield body

    async def handle(body):
        return lazily(body)

    box.send(1)
    Worker(box, handle).run(max_iterations=1, wait_time_seconds=0)
    assert box.stats().total == 1
    assert "none of its code has run" in caplog.text


# --- many at once ------------------------------------------------------------------------------


def test_jobs_are_tasks_of_one_loop_and_no_threads(jobs):
    gate, loops = Gate(), set()

    async def handle(body):
        loops.add(asyncio.get_running_loop())
        return await gate(body)

    jobs.send_batch(list(range(300)))
    threads = threading.active_count()
    worker = Worker(jobs, handle, config=WorkerConfig(concurrency=300))
    with in_background(worker):
        eventually(lambda: len(gate.inside) == 300)
        assert threading.active_count() < threads + 20
        gate.open.set()
        eventually(lambda: jobs.stats().total == 0)
    assert sorted(gate.done) == list(range(300))
    assert len(loops) == 1


def test_no_more_is_leased_than_there_are_places(jobs):
    gate = Gate()
    jobs.send_batch(list(range(50)))
    worker = Worker(jobs, gate, config=WorkerConfig(concurrency=7, batch=100))
    with in_background(worker):
        eventually(lambda: len(gate.inside) == 7)
        assert jobs.stats().in_flight == 7
        gate.open.set()
        eventually(lambda: jobs.stats().total == 0)
    assert sorted(gate.done) == list(range(50))


def test_callers_are_answered_beside_a_receive_that_waits(jobs):
    async def handle(body):
        await asyncio.sleep(0)
        return body * 2

    worker = Worker(jobs, handle, config=WorkerConfig(concurrency=100))
    with in_background(worker):
        replies = [jobs.send_expecting_reply(n) for n in range(30)]
        assert [reply.wait(timeout=60) for reply in replies] == [n * 2 for n in range(30)]


def test_an_iteration_is_a_receive_and_run_ends_when_its_jobs_have(jobs):
    done = []

    async def handle(body):
        await asyncio.sleep(0.05)
        done.append(body)

    jobs.send_batch(list(range(5)))
    worker = Worker(jobs, handle, config=WorkerConfig(concurrency=3))
    worker.run(max_iterations=1, wait_time_seconds=0)
    assert len(done) == 3
    assert jobs.stats().total == 2
    assert jobs.stats().in_flight == 0
    worker.run(max_iterations=0)
    assert len(done) == 3


def test_a_callable_with_an_async_call_and_a_method_are_async(jobs):
    class Handler:
        def __init__(self):
            self.seen = []

        async def method(self, body):
            self.seen.append((body, asyncio.get_running_loop()))

        async def __call__(self, body):
            await self.method(body)

    handler = Handler()
    for one in (handler, handler.method):
        jobs.send("x")
        Worker(jobs, one, config=WorkerConfig(concurrency=2000)).run(
            max_iterations=1, wait_time_seconds=0
        )
    assert [body for body, _ in handler.seen] == ["x", "x"]


# --- in the caller's own loop ------------------------------------------------------------------


def test_run_async_serves_in_the_callers_loop_until_shutdown_async(jobs):
    async def main():
        loops = []

        async def handle(body):
            loops.append(asyncio.get_running_loop())
            return body + 1

        worker = Worker(jobs, handle, config=WorkerConfig(concurrency=10))
        running = asyncio.create_task(worker.run_async())
        replies = [await jobs.send_expecting_reply_async(n) for n in range(5)]
        assert [await reply.wait_async(timeout=60) for reply in replies] == [1, 2, 3, 4, 5]
        assert await worker.shutdown_async(timeout=60)
        await asyncio.wait_for(running, 60)
        assert set(loops) == {asyncio.get_running_loop()}

    asyncio.run(main())


def test_shutdown_async_does_not_wait_for_threads_that_jobs_occupy():
    box, go, begun = InMemoryMailbox("jobs"), threading.Event(), []

    async def handle(body):
        begun.append(body)
        await asyncio.to_thread(go.wait, 60)

    async def main():
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        worker = Worker(box, handle, config=WorkerConfig(concurrency=2))
        running = asyncio.create_task(worker.run_async())
        while len(begun) < 2:
            await asyncio.sleep(0.005)
        stopping = asyncio.create_task(worker.shutdown_async(timeout=60))
        try:
            async with asyncio.timeout(10):
                while not worker._stop.is_set():
                    await asyncio.sleep(0.005)
        finally:
            go.set()
        assert await stopping
        await running

    box.send_batch([1, 2, 3])
    asyncio.run(main())
    assert box.stats().pending == 1


def test_to_cancel_run_async_lets_jobs_finish_and_again_cuts_them_off(jobs):
    async def main(again):
        gate, entered = Gate(), asyncio.Event()

        async def handle(body):
            entered.set()
            await gate(body)

        jobs.send("job")
        worker = Worker(jobs, handle)
        running = asyncio.create_task(worker.run_async())
        await asyncio.wait_for(entered.wait(), 60)
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0.002)
        assert not running.done()
        running.cancel() if again else gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        return gate

    assert asyncio.run(main(False)).done == ["job"]
    assert jobs.stats().total == 0
    assert asyncio.run(main(True)).cut_off == ["job"]
    (waiting,) = jobs.peek()
    assert waiting.delivery_count == 0


def test_an_event_loop_that_ends_is_no_failure_of_its_jobs(backend, jobs):
    """When `main` raises, asyncio.run cancels every task: the worker's and those of its jobs."""
    gate, letters = Gate(), backend.mailbox(f"letters-{new_id()}")
    worker = Worker(
        jobs,
        gate,
        error_reply=lambda failure: failure.text,
        dlq=DLQPolicy(letters, max_delivery_count=1),
        config=WorkerConfig(concurrency=3),
    )

    async def main():
        running = asyncio.create_task(worker.run_async())
        while len(gate.inside) < 3:
            await asyncio.sleep(0.005)
        raise LookupError(f"beside {running}")

    jobs.send_batch([1, 2, 3])
    with pytest.raises(LookupError):
        asyncio.run(main())
    assert sorted(gate.cut_off) == [1, 2, 3]
    assert sorted(waiting.body for waiting in jobs.peek(10)) == [1, 2, 3]
    assert all(waiting.delivery_count == 0 for waiting in jobs.peek(10))
    assert letters.stats().total == 0


def test_a_plain_handler_is_not_run_in_an_event_loop(jobs):
    with pytest.raises(UnsupportedOperationError, match="async handlers"):
        asyncio.run(Worker(jobs, str).run_async())


# --- failures ----------------------------------------------------------------------------------


def test_a_failed_job_is_retried_and_then_dead_lettered(backend, jobs):
    letters, calls = backend.mailbox(f"letters-{new_id()}"), []

    async def handle(body):
        calls.append(body)
        raise ValueError(f"no {body}")

    policy = DLQPolicy(letters, max_delivery_count=3)
    worker = Worker(jobs, handle, dlq=policy, config=WorkerConfig(concurrency=5, backoff=SOON))
    jobs.send_batch([1, 2])
    with in_background(worker):
        eventually(lambda: letters.stats().total == 2)
    assert sorted(calls) == [1, 1, 1, 2, 2, 2]
    assert jobs.stats().total == 0
    assert {letter.body.last_error for letter in letters.receive(max_messages=5)} == {
        "no 1",
        "no 2",
    }


@pytest.mark.parametrize(
    "error", [GeneratorExit, KeyboardInterrupt, asyncio.CancelledError, StopIteration]
)
def test_whatever_a_job_raises_is_its_own_failure(backend, jobs, error):
    letters = backend.mailbox(f"letters-{new_id()}")

    async def handle(body):
        raise error

    worker = Worker(jobs, handle, dlq=DLQPolicy(letters, max_delivery_count=1))
    jobs.send("job")
    with in_background(worker):
        eventually(lambda: letters.stats().total == 1)
    assert jobs.stats().total == 0


def test_a_job_that_exits_ends_the_worker_after_the_others(jobs):
    gate = Gate()

    async def handle(body):
        if body == "exit":
            gate.open.set()
            raise SystemExit(7)
        await gate(body)

    jobs.send_batch(["other", "exit"])
    worker = Worker(jobs, handle, config=WorkerConfig(concurrency=2, backoff=SOON))
    with pytest.raises(SystemExit, match="7"):
        worker.run()
    assert gate.done == ["other"]
    (waiting,) = jobs.peek()
    assert waiting.body == "exit"


async def in_group(work):
    async with asyncio.TaskGroup() as group:
        group.create_task(work)


async def in_gather(work):
    await asyncio.gather(work, asyncio.sleep(60))


async def in_task(work):
    task = asyncio.create_task(work)
    task.add_done_callback(asyncio.Task.exception)  # else asyncio logs that nobody has seen it
    await task


async def beside(work):
    task = asyncio.create_task(work)
    task.add_done_callback(asyncio.Task.exception)
    await asyncio.sleep(60)


@pytest.mark.parametrize("start", [in_group, in_gather, in_task, beside])
def test_a_job_whose_own_task_exits_is_a_failed_one(start):
    """Else its message would end every worker that takes it, and never be dead-lettered."""
    box = InMemoryMailbox("jobs")
    begun = []

    async def leave():
        while len(begun) < 2:
            await asyncio.sleep(0)
        raise SystemExit(7)

    async def handle(body):
        begun.append(body)
        await (start(leave()) if body == "exit" else asyncio.sleep(60))

    box.send_batch(["other", "exit"])
    worker = Worker(box, handle, config=WorkerConfig(concurrency=2, backoff=SOON))
    with pytest.raises(SystemExit, match="7"):
        worker.run()
    counts = {message.body: message.delivery_count for message in box.peek(10)}
    assert counts == {"other": 0, "exit": 1}
    assert worker.lease_extender.counters.held == 0


def test_a_body_that_cannot_be_read_is_dead_lettered_and_others_go_on(tmp_path):
    with connect(f"sqlite:///{tmp_path}/jobs.db") as backend:
        backend.mailbox("jobs").send_batch(["no number", 2])
        jobs, letters, done = (
            backend.mailbox("jobs", body_type=int),
            backend.mailbox("letters"),
            [],
        )

        async def handle(body):
            done.append(body)

        worker = Worker(jobs, handle, dlq=DLQPolicy(letters), config=WorkerConfig(concurrency=9))
        with in_background(worker):
            eventually(lambda: jobs.stats().total == 0)
        assert done == [2]
        assert letters.stats().total == 1


# --- the end -----------------------------------------------------------------------------------


def test_what_does_not_finish_in_time_is_cancelled_and_given_back(jobs):
    gate = Gate()
    jobs.send_batch([1, 2, 3])
    worker = Worker(jobs, gate, config=WorkerConfig(concurrency=3))
    with in_background(worker):
        eventually(lambda: len(gate.inside) == 3)
        assert worker.shutdown(timeout=0.05) is False
        assert sorted(gate.cut_off) == [1, 2, 3]
    assert sorted(waiting.body for waiting in jobs.peek(10)) == [1, 2, 3]
    assert all(waiting.delivery_count == 0 for waiting in jobs.peek(10))


def test_a_job_that_ends_though_it_was_cancelled_is_done(jobs):
    entered = threading.Event()

    async def handle(body):
        entered.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "saved"

    reply = jobs.send_expecting_reply("job")
    worker = Worker(jobs, handle)
    with in_background(worker):
        assert entered.wait(60)
        worker.shutdown(timeout=0.05)
    assert reply.wait(timeout=60) == "saved"
    assert jobs.stats().total == 0


def test_a_job_that_will_not_end_is_given_back_all_the_same(jobs, monkeypatch, caplog):
    monkeypatch.setattr(event_loop, "FINALLY_SECONDS", 0.05)
    entered, go = threading.Event(), threading.Event()

    async def handle(body):
        entered.set()
        while not go.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass

    jobs.send("stubborn")
    worker = Worker(jobs, handle)
    with in_background(worker):
        assert entered.wait(60)
        assert worker.shutdown(timeout=0.05) is False
        go.set()
    (waiting,) = jobs.peek()
    assert waiting.body == "stubborn"
    assert "did not end within" in caplog.text


def test_a_job_that_will_not_end_does_not_keep_a_run_from_ending(monkeypatch):
    """At its end, asyncio waits for each task that it lists."""
    monkeypatch.setattr(event_loop, "FINALLY_SECONDS", 0.05)
    box, entered, go = InMemoryMailbox("jobs"), threading.Event(), threading.Event()

    async def handle(body):
        entered.set()
        while not go.is_set():
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                pass

    box.send("stubborn")
    worker = Worker(box, handle)
    running = threading.Thread(target=worker.run)
    running.start()
    try:
        assert entered.wait(60)
        assert worker.shutdown(timeout=0.05) is False
        running.join(20)
        assert not running.is_alive()
    finally:
        go.set()
        running.join(60)
    assert box.stats().pending == 1


def test_shutdown_from_inside_a_job_only_tells_the_loop(jobs):
    ended = []

    async def handle(body):
        ended.append(worker.shutdown())
        ended.append(await worker.shutdown_async())

    jobs.send("job")
    worker = Worker(jobs, handle)
    worker.run()
    assert ended == [False, False]
    assert jobs.stats().total == 0


def test_ctrl_c_ends_a_run_and_gives_back(tmp_path):
    """In a process of its own, with a real signal."""
    program = """
import asyncio, sys
from weakincentives import connect
from weakincentives.runtime import Worker, WorkerConfig

async def handle(body):
    print("at work", flush=True)
    try:
        await asyncio.sleep(600)
    finally:
        print("finally", flush=True)

with connect(sys.argv[1]) as backend:
    Worker(backend.mailbox("jobs"), handle, config=WorkerConfig(concurrency=4)).run()
"""
    url = f"sqlite:///{tmp_path}/jobs.db"
    with connect(url) as backend:
        backend.mailbox("jobs").send("job")
        child = subprocess.Popen(
            [sys.executable, "-c", program, url],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # A shell in the background has it ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "at work\n"
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        finally:
            child.kill()
            child.wait()
        assert out == "finally\n"
        assert "KeyboardInterrupt" in err
        (waiting,) = backend.mailbox("jobs").peek()
        assert waiting.delivery_count == 0


# --- leases ------------------------------------------------------------------------------------


def test_leases_are_kept_while_the_loop_is_blocked_and_the_stack_is_reported(
    jobs, monkeypatch, caplog
):
    monkeypatch.setattr(blocked_loop, "BLOCKED_SECONDS", 0.2)
    monkeypatch.setattr(blocked_loop, "LOOK_SECONDS", 0.1)
    done = []

    async def blocks_the_loop(body):
        time.sleep(2.5)
        done.append(body)

    jobs.send("job")
    worker = Worker(
        jobs, blocks_the_loop, config=WorkerConfig(lease_extender=LeaseExtenderConfig(interval=0.2))
    )
    with caplog.at_level(logging.WARNING):
        worker.run(max_iterations=1, wait_time_seconds=0, visibility_timeout=1)
    assert done == ["job"]
    assert jobs.stats().total == 0
    report = next(one for one in caplog.records if "has been blocked" in one.message)
    assert "time.sleep(2.5)" in report.message
    assert "blocks_the_loop" in report.stack
    assert any("it was blocked for" in one.message for one in caplog.records)


# --- resources ---------------------------------------------------------------------------------


def test_resources_are_entered_once_for_a_run_and_left_after_its_jobs(jobs):
    life, seen = [], []

    @asynccontextmanager
    async def resources():
        life.append("entered")
        yield asyncio.Semaphore(8)
        life.append(f"left after {len(seen)}")

    async def handle(body):
        seen.append(body)

    jobs.send_batch(list(range(64)))
    worker = Worker(jobs, handle, resources=resources, config=WorkerConfig(concurrency=8))
    with in_background(worker):
        eventually(lambda: jobs.stats().total == 0)
    assert life == ["entered", "left after 64"]


def test_resources_of_plain_handlers_are_plain(jobs):
    life = []

    @contextmanager
    def resources():
        life.append("entered")
        yield "client"
        life.append("left")

    @asynccontextmanager
    async def asynchronous():
        yield "client"

    Worker(jobs, str, resources=resources).run(max_iterations=1, wait_time_seconds=0)
    assert life == ["entered", "left"]
    with pytest.raises(InvalidParameterError, match="needs an async handler"):
        Worker(jobs, str, resources=asynchronous).run(max_iterations=1)
    with pytest.raises(InvalidParameterError, match="must return a context manager"):
        Worker(jobs, str, resources=lambda: "client").run(max_iterations=1)
    with pytest.raises(InvalidParameterError, match="must be a function"):
        Worker(jobs, str, resources="client")


def test_resources_that_cannot_be_made_end_the_run_before_anything_is_leased(jobs):
    @asynccontextmanager
    async def resources():
        raise RuntimeError("no database")
        yield

    async def handle(body):
        raise AssertionError

    jobs.send("job")
    with pytest.raises(RuntimeError, match="no database"):
        Worker(jobs, handle, resources=resources).run()
    (waiting,) = jobs.peek()
    assert waiting.delivery_count == 0


# --- faults ------------------------------------------------------------------------------------


def test_a_mailbox_that_fails_for_a_while_is_tried_again_and_nothing_is_lost(jobs, monkeypatch):
    async def failing(*args, **options):
        raise MailboxConnectionError("gone")

    done, gate = [], Gate()

    async def handle(body):
        await gate(body)
        done.append(body)

    jobs.send_batch([1, 2])
    worker = Worker(jobs, handle, config=WorkerConfig(concurrency=2))
    exchange = worker._loop_inbox.exchange_async
    with in_background(worker, wait_time_seconds=0.5):  # it is known to be back after a receive
        eventually(lambda: len(gate.inside) == 2)
        monkeypatch.setattr(worker._loop_inbox, "exchange_async", failing)
        gate.open.set()
        eventually(lambda: worker.heartbeat.trouble(60) is not None)
        monkeypatch.setattr(worker._loop_inbox, "exchange_async", exchange)
        eventually(lambda: jobs.stats().total == 0)
        eventually(lambda: worker.heartbeat.trouble(60) is None)
    assert sorted(done) == [1, 2]


def test_too_many_places_are_refused_for_threads():
    config = WorkerConfig(concurrency=1001)
    with pytest.raises(InvalidParameterError, match="at most 1000 for a plain handler"):
        Worker(InMemoryMailbox("jobs"), str, config=config)
    with pytest.raises(InvalidParameterError, match="from 1 to 10000"):
        WorkerConfig(concurrency=10_001)


# --- messages whose workers died ---------------------------------------------------------------


def test_a_message_at_its_last_chance_runs_while_nothing_else_does(tmp_path):
    with connect(f"sqlite:///{tmp_path}/jobs.db?durability=normal") as backend:
        jobs, letters = backend.mailbox("jobs"), backend.mailbox("letters")
        at_work, seen = set(), {}

        async def handle(body):
            at_work.add(body)
            for _ in range(5):
                await asyncio.sleep(0.005)
                seen.setdefault(body, set()).update(at_work)
            at_work.discard(body)

        jobs.send_batch(["suspect-1", "suspect-2"])
        for _ in range(2):
            messages = eventually(lambda: jobs.receive(max_messages=10, visibility_timeout=0.05))
            while len(messages) < 2:
                messages += jobs.receive(max_messages=10, visibility_timeout=0.05)
            eventually(lambda: jobs.stats().pending == 2)
        jobs.send_batch([f"other-{n}" for n in range(20)])
        policy = DLQPolicy(letters, max_delivery_count=3)
        worker = Worker(jobs, handle, dlq=policy, config=WorkerConfig(concurrency=10))
        with in_background(worker):
            eventually(lambda: jobs.stats().total == 0)
    assert seen["suspect-1"] == {"suspect-1"}
    assert seen["suspect-2"] == {"suspect-2"}
    assert len(seen) == 22


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_that_a_job_forks_ends_and_settles_nothing(tmp_path):
    with connect(f"sqlite:///{tmp_path}/jobs.db") as backend:
        jobs, children = backend.mailbox("jobs"), []

        async def handle(body):
            child = os.fork()
            if child:
                children.append(child)
                await asyncio.sleep(0)
            return body

        reply = jobs.send_expecting_reply("job")
        Worker(jobs, handle).run(max_iterations=1, wait_time_seconds=0)
        assert reply.wait(timeout=60) == "job"
        assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 0
        assert jobs.stats().total == 0
