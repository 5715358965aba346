"""One core, two drivers: a thread runs a coroutine by itself, an event loop awaits it.

What both faces of a mailbox need is written once, as coroutines over a `Store`. The steps of a
blocking store never suspend, so that a thread can run such a coroutine from its start to its end.
An event loop awaits it; if its steps would block the loop, it runs in a thread (`step_threads`).
"""

import asyncio
import types
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from typing import Any, Literal, TypeAlias, TypeVar, cast

__all__ = ["Make", "Steps", "drive", "run", "start_unlisted", "unlist"]

V = TypeVar("V")

Steps: TypeAlias = Literal["inline", "blocking", "awaited"]
"""How a store takes a step: so short that an event loop may run it itself, blocking its thread
for I/O, or suspending until the event loop has done the I/O."""

Make: TypeAlias = Callable[[], Coroutine[Any, Any, V]]
Runner: TypeAlias = "types.GeneratorType[Any, Coroutine[Any, Any, Any], None]"


@types.coroutine
def _runner() -> Generator[Any, Coroutine[Any, Any, Any], None]:
    """Run one coroutine after the other; each is sent in, and its result is yielded."""
    coroutine = yield
    while True:
        coroutine = yield (yield from coroutine)


# Using a runner again is cheaper than the StopIteration that ends a coroutine. There are as many
# as were ever in use at once: a step, or a signal handler, may run another coroutine.
_idle: "deque[Runner]" = deque(maxlen=64)


def run(make: Make[V]) -> V:
    """Make a coroutine and run it in this thread; nothing in it may suspend.

    It is made here, so that an interrupt before it starts does not leave one never awaited.
    """
    coroutine = make()
    try:
        return drive(coroutine)
    except BaseException:
        coroutine.close()
        raise


def drive(coroutine: Coroutine[Any, Any, V]) -> V:
    """Run a coroutine in this thread; the caller must close it if this raises."""
    try:
        runner = _idle.pop()
    except IndexError:
        runner = cast(Runner, _runner())
        next(runner)
    result: V = runner.send(coroutine)
    if runner.gi_yieldfrom is not None:
        runner.close()
        raise RuntimeError(f"{coroutine!r} suspended; a step of a blocking store must not suspend")
    _idle.append(runner)
    return result


def start_unlisted(
    coroutine: Coroutine[Any, Any, V], context: Context | None = None
) -> "asyncio.Task[V]":
    """Start a task that only its starter can cancel.

    An event loop that ends cancels all tasks that it lists, so also one that a receive has shielded
    because it may be leasing. The starter of such a task must wait for its end.
    """
    # Not by the loop's own task factory, which may run the coroutine before there is a task.
    task = asyncio.Task(coroutine, loop=asyncio.get_running_loop(), context=context)
    unlist(task)
    return task


def unlist(task: "asyncio.Task[Any]") -> None:
    """Have an event loop that ends neither cancel this task nor wait for it."""
    asyncio.tasks._unregister_task(task)  # documented for those who extend asyncio
