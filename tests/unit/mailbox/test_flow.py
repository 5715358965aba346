import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from weakincentives.runtime.mailbox.flow import Flow, Look, drive, drive_async, in_executor, step_of


def run_async(flow: Flow[Any]) -> Any:
    return asyncio.run(drive_async(flow))


both = pytest.mark.parametrize("run", [drive, run_async])
Run = Callable[[Flow[Any]], Any]


async def give(value: object) -> object:
    await asyncio.sleep(0)
    return value


def forms(value: object) -> Look:
    return Look(lambda: ("blocked", value), lambda: give(("awaited", value)))


@both
def test_a_flow_is_sent_the_results_of_its_steps(run: Run) -> None:
    def flow() -> Flow[list[int]]:
        first = yield lambda: 1
        second = yield lambda: first + 1
        return [first, second]

    assert run(flow()) == [1, 2]


@both
def test_a_flow_without_steps(run: Run) -> None:
    def flow() -> Flow[str]:
        return "done"
        yield

    assert run(flow()) == "done"


def test_each_driver_takes_its_own_form_of_a_look() -> None:
    def flow() -> Flow[object]:
        return (yield forms(7))

    assert drive(flow()) == ("blocked", 7)
    assert run_async(flow()) == ("awaited", 7)


@both
def test_a_flow_may_catch_what_a_step_raises(run: Run) -> None:
    def flow() -> Flow[str]:
        try:
            yield lambda: 1 / 0
        except ZeroDivisionError:
            return (yield lambda: "recovered")
        return "not reached"

    assert run(flow()) == "recovered"


@both
def test_what_a_flow_does_not_catch_comes_out_after_its_cleanup(run: Run) -> None:
    cleaned: list[str] = []

    def flow() -> Flow[None]:
        try:
            yield lambda: 1 / 0
        finally:
            yield lambda: cleaned.append("up")

    with pytest.raises(ZeroDivisionError):
        run(flow())
    assert cleaned == ["up"]


@both
def test_an_error_of_the_flow_itself_comes_out(run: Run) -> None:
    def flow() -> Flow[None]:
        yield lambda: None
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        run(flow())


def test_a_cancelled_flow_may_still_take_steps() -> None:
    async def main() -> list[str]:
        steps: list[str] = []
        waiting = asyncio.Event()

        async def forever() -> None:
            waiting.set()
            await asyncio.Event().wait()

        def flow() -> Flow[None]:
            try:
                yield Look(lambda: None, forever)
            finally:
                yield Look(lambda: None, lambda: give(steps.append("gave back")))

        task = asyncio.create_task(drive_async(flow()))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return steps

    assert asyncio.run(main()) == ["gave back"]


def test_how_a_store_takes_steps_decides_where_they_run() -> None:
    def where() -> int:
        return threading.get_ident()

    def flow(step: Any) -> Flow[int]:
        return (yield step)

    here = threading.get_ident()
    assert drive(flow(step_of("inline", where))) == here
    assert drive(flow(step_of("blocking", where))) == here
    assert run_async(flow(step_of("inline", where))) == here
    assert run_async(flow(step_of("blocking", where))) != here
    assert run_async(flow(step_of("awaited", lambda: give(here)))) == here


def test_the_executor_hands_back_results_and_errors() -> None:
    assert asyncio.run(in_executor(lambda: 7)) == 7
    with pytest.raises(ZeroDivisionError):
        asyncio.run(in_executor(lambda: 1 / 0))
