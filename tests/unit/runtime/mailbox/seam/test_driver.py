"""A coroutine is run by a thread, or awaited in an event loop, with the same result."""

import asyncio
import gc
import signal
import threading
import warnings
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

import pytest

from testkit.interrupts import sparing_coverage
from weakincentives.runtime.mailbox import InMemoryMailbox
from weakincentives.runtime.mailbox.seam import driver
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.step_threads import hop

Make = Callable[[], Coroutine[Any, Any, Any]]


def awaited(make: Make) -> Any:
    return asyncio.run(make())


def hopped(make: Make) -> Any:
    return asyncio.run(hop(make))


every = pytest.mark.parametrize("drive", [run, awaited, hopped])


async def plus_one(number: int) -> int:
    return number + 1


@every
def test_it_returns_what_the_coroutine_returns(drive: Callable[[Make], Any]) -> None:
    async def three() -> int:
        return await plus_one(await plus_one(1))

    assert drive(three) == 3
    assert drive(lambda: plus_one(3)) == 4


@every
def test_it_raises_what_the_coroutine_raises_after_its_cleanup(
    drive: Callable[[Make], Any],
) -> None:
    cleaned = []

    async def fail() -> None:
        try:
            raise LookupError("mine")
        finally:
            cleaned.append(await plus_one(0))

    with pytest.raises(LookupError, match="mine"):
        drive(fail)
    assert cleaned == [1]


@every
def test_a_coroutine_may_catch_what_a_step_raises(drive: Callable[[Make], Any]) -> None:
    async def fail() -> None:
        raise LookupError

    async def recover() -> str:
        try:
            await fail()
        except LookupError:
            return "recovered"
        return "not reached"

    assert drive(recover) == "recovered"


def test_a_step_may_run_another_coroutine() -> None:
    async def outer() -> list[int]:
        return [run(lambda: plus_one(1)), await plus_one(2)]

    assert run(outer) == [2, 3]


def test_runners_are_used_again_and_one_that_failed_is_not() -> None:
    driver._idle.clear()

    async def fail() -> None:
        raise LookupError

    for _ in range(3):
        run(lambda: plus_one(1))
    assert len(driver._idle) == 1
    with pytest.raises(LookupError):
        run(fail)
    assert len(driver._idle) == 0
    assert run(lambda: plus_one(1)) == 2


def test_threads_do_not_get_into_each_others_way() -> None:
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for n in range(5_000):
                assert run(lambda n=n: plus_one(n)) == n + 1  # type: ignore[misc]
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert failed == []


def test_a_step_that_suspends_is_an_error_and_is_closed() -> None:
    closed = []

    async def suspend() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match=r"suspend.*must not"):
        run(suspend)
    assert closed == [True]
    assert run(lambda: plus_one(1)) == 2


def test_the_executor_sees_the_callers_context() -> None:
    name: ContextVar[str] = ContextVar("name")

    async def read() -> tuple[str, bool]:
        return name.get(), threading.current_thread() is threading.main_thread()

    async def main() -> tuple[str, bool]:
        name.set("mine")
        return await hop(read)

    assert asyncio.run(main()) == ("mine", False)


def test_a_cancelled_coroutine_may_still_take_steps() -> None:
    async def main() -> list[int]:
        steps: list[int] = []
        waiting = asyncio.Event()

        async def wait() -> None:
            try:
                waiting.set()
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                steps.append(await plus_one(0))

        task = asyncio.create_task(wait())
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return steps

    assert asyncio.run(main()) == [1]


def test_interrupts_leave_no_coroutine_that_was_never_awaited() -> None:
    """A signal handler that raises may run after any bytecode."""

    class Interrupt(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupt

    box: InMemoryMailbox[int, int] = InMemoryMailbox("jobs")
    before = signal.signal(signal.SIGALRM, sparing_coverage(interrupt))
    interrupts = 0
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for number in range(2_000):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-6 + number % 100 * 1e-6)
                    while True:
                        run(lambda: plus_one(1))
                        box.stats()
                        box.peek()
                except Interrupt:
                    interrupts += 1
            gc.collect()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts == 2_000
    assert [str(warning.message) for warning in caught] == []
