"""The threads that take blocking steps for event loops: of each backend its own, and no others."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest

from testkit.forks import in_fork
from testkit.threads import started_since, threads_now
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime.mailbox.seam.step_threads import MOST_THREADS, STEP_THREADS, hop


class Place:
    """A store that shares nothing, or a backend."""


class On:
    """A store on a backend."""

    def __init__(self, backend: object) -> None:
        self.backend_key = backend


async def current_thread() -> threading.Thread:
    return threading.current_thread()


def test_a_step_runs_in_a_thread_of_its_backend_in_the_callers_context() -> None:
    name: ContextVar[str] = ContextVar("name")
    backend = Place()

    async def read() -> tuple[str, threading.Thread]:
        return name.get(), threading.current_thread()

    async def main() -> list[tuple[str, threading.Thread]]:
        name.set("mine")
        return [await hop(read, place) for place in (On(backend), On(backend), On(Place()))]

    first, second, other = asyncio.run(main())
    assert {value for value, _ in (first, second, other)} == {"mine"}
    assert first[1] is second[1] is not other[1]
    assert threading.main_thread() not in (first[1], other[1])


@asynccontextmanager
async def occupied(*places: object) -> AsyncIterator[None]:
    """Keep all threads of places busy, with as many steps more in the queue."""
    go_on, waiting = threading.Event(), threading.Semaphore(0)

    async def wait() -> None:
        waiting.release()
        go_on.wait(60)

    steps = [asyncio.ensure_future(hop(wait, *places)) for _ in range(2 * MOST_THREADS)]
    try:
        for _ in range(MOST_THREADS):
            assert await asyncio.to_thread(waiting.acquire, timeout=60)
        assert not waiting.acquire(blocking=False), "more threads than allowed"
        async with asyncio.timeout(60):
            yield
        assert not any(step.done() for step in steps)
    finally:
        go_on.set()
    await asyncio.gather(*steps)


def test_a_backend_that_hangs_delays_no_other_nor_the_loops_own_executor() -> None:
    hanging, healthy = Place(), Place()

    async def main() -> None:
        async with occupied(hanging):
            await hop(current_thread, healthy)
            await hop(current_thread)
            await asyncio.to_thread(int)

    asyncio.run(main())


def test_steps_on_two_backends_occupy_the_threads_of_neither() -> None:
    places = Place(), Place()

    async def main() -> None:
        async with occupied(*places):
            for place in places:
                await hop(current_thread, place)

    asyncio.run(main())


@pytest.mark.parametrize("place", [7, (), [], On([]), On("text")])
def test_what_cannot_be_referred_to_weakly_uses_the_loops_own_executor(place: object) -> None:
    assert asyncio.run(hop(current_thread, place)).name.startswith("asyncio_")


def test_no_thread_is_left_when_the_backend_is_gone() -> None:
    before = threads_now()

    def use() -> None:
        place = Place()
        asyncio.run(hop(current_thread, place))
        asyncio.run(hop(current_thread, place, Place()))
        assert len(started_since(before)) >= 1

    use()
    gc.collect()
    eventually(lambda: not started_since(before), what="the threads to end")


def test_a_released_backend_finishes_what_is_queued_and_may_be_used_again() -> None:
    before, place, done = threads_now(), Place(), []

    async def step() -> None:
        time.sleep(0.001)
        done.append(threading.current_thread())

    async def main() -> None:
        steps = [asyncio.ensure_future(hop(step, place)) for _ in range(100)]
        await asyncio.sleep(0)
        STEP_THREADS.release(place)
        await asyncio.gather(*steps)
        assert await hop(current_thread, place) not in done

    asyncio.run(main())
    assert len(done) == 100
    STEP_THREADS.release(place)
    eventually(lambda: not started_since(before))


def test_a_closed_file_leaves_no_thread(tmp_path: Any) -> None:
    before = threads_now()
    with connect(f"sqlite:///{tmp_path}/queue.db") as backend:
        box = backend.mailbox("jobs")
        asyncio.run(box.send_async("a"))
        assert started_since(before)
    eventually(lambda: not started_since(before), what="the threads to end")
    assert backend is not None


def test_a_forked_child_uses_threads_of_its_own(tmp_path: Any) -> None:
    with connect(f"sqlite:///{tmp_path}/queue.db") as backend:
        box = backend.mailbox("jobs")

        def work() -> None:
            async def main() -> None:
                await asyncio.gather(*(box.send_async("a") for _ in range(3 * MOST_THREADS)))

            asyncio.run(main())

        work()
        assert in_fork(work) == 0
        work()
        assert box.approximate_count() == 9 * MOST_THREADS


EXIT = """
import asyncio, sys, time
from weakincentives import connect
from weakincentives.runtime.mailbox.seam.step_threads import hop

backend = connect("sqlite:///" + sys.argv[1])
box = backend.mailbox("jobs")

async def slow():
    time.sleep(0.3)
    print("finished")

async def main():
    await box.send_async("a")
    task = asyncio.ensure_future(hop(slow, box.store))
    await asyncio.sleep(0.05)

asyncio.run(main())
print("ran", flush=True)
"""


def test_a_process_ends_by_itself_when_its_steps_have(tmp_path: Any) -> None:
    """The backend is still open and its threads idle, or amid a step whose task was cancelled."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(tmp_path / "queue.db")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.split()) == ["finished", "ran"]


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Let no thread for steps be started while the list holds something."""
    failing: list[bool] = []
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if failing and thread.name.startswith("store-steps"):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    return failing


def test_a_step_that_no_thread_could_take_is_not_taken_later(no_threads: list[bool]) -> None:
    """It may lease messages, and nobody would know of them."""
    place, taken = On(Place()), []

    async def step(name: str) -> None:
        taken.append(name)

    async def main() -> None:
        no_threads.append(True)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            await hop(lambda: step("refused"), place)
        no_threads.clear()
        await hop(lambda: step("next"), place)
        await hop(lambda: step("last"), place)

    asyncio.run(main())
    assert taken == ["next", "last"]


def test_a_step_is_taken_by_the_threads_there_are(no_threads: list[bool]) -> None:
    place = On(Place())
    begun, go_on = threading.Event(), threading.Event()

    async def wait() -> None:
        begun.set()
        assert go_on.wait(60)

    async def main() -> threading.Thread:
        first = asyncio.create_task(hop(wait, place))
        assert await asyncio.to_thread(begun.wait, 60)
        no_threads.append(True)
        second = asyncio.create_task(hop(current_thread, place))
        await asyncio.sleep(0)
        go_on.set()
        await first
        return await second

    assert asyncio.run(main()).name.startswith("store-steps")
