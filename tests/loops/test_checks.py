"""What a loop refuses before it begins."""

import asyncio

import pytest

from weakincentives.runtime import (
    Backoff,
    InvalidParameterError,
    UnsupportedOperationError,
    Worker,
    WorkerConfig,
)


def lazily(body):
    yield body


async def lazily_async(body):
    yield body


@pytest.mark.parametrize("handler", [lazily, lazily_async, None, 5])
def test_a_handler_that_would_run_nothing_is_refused(box, handler):
    with pytest.raises(InvalidParameterError, match="handler"):
        Worker(box, handler)


@pytest.mark.parametrize("handler", [lazily, lazily_async])
def test_a_generator_is_no_result(box, handler):
    box.send("job")
    config = WorkerConfig(backoff=Backoff(base=0, cap=0))
    Worker(box, lambda body: handler(body), config=config).run(
        max_iterations=1, wait_time_seconds=0
    )
    assert [message.body for message in box.receive()] == ["job"]


async def explain(failure):
    return failure.text


@pytest.mark.parametrize(
    "parts", [{"mailbox": None}, {"error_reply": explain}, {"dlq": "letters"}, {"config": {}}]
)
def test_parts_that_make_no_loop_are_refused(box, parts):
    given = {"mailbox": box, "handler": str, **parts}
    with pytest.raises(InvalidParameterError, match=next(iter(parts))):
        Worker(given.pop("mailbox"), given.pop("handler"), **given)


@pytest.mark.parametrize("count", [-1, 1.5, float("nan"), True, "1"])
def test_a_number_of_iterations_is_a_whole_one(box, count):
    with pytest.raises(InvalidParameterError, match="max_iterations"):
        Worker(box, str).run(max_iterations=count)


def test_an_async_handler_is_not_run_inside_an_event_loop(box):
    ran = []

    async def handler(body):
        ran.append(body)

    box.send("job")
    worker = Worker(box, handler)

    async def notebook():
        with pytest.raises(UnsupportedOperationError, match="run_async"):
            worker.run(max_iterations=1, wait_time_seconds=0)
        await worker.run_async(max_iterations=1, wait_time_seconds=0)

    asyncio.run(notebook())
    assert ran == ["job"]
