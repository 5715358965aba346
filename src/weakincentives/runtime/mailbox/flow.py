"""Logic written once and driven twice: by a thread that blocks, or by an event loop.

A flow is a generator that yields steps, each a call without arguments, and is sent their results.
What a flow does between the steps is the same for both drivers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Any, Literal, TypeAlias, TypeVar

__all__ = ["Flow", "Look", "Step", "Steps", "drive", "drive_async", "in_executor", "step_of"]

V = TypeVar("V")

Steps: TypeAlias = Literal["inline", "blocking", "awaited"]
"""How a store takes a step: so short that an event loop may run it itself, blocking its thread
for I/O, or as something to await."""


class Look:
    """A step in two forms: one blocks its thread, the other does not block the event loop."""

    __slots__ = ("awaited", "blocking")

    def __init__(self, blocking: Callable[[], Any], awaited: Callable[[], Awaitable[Any]]) -> None:
        self.blocking = blocking
        self.awaited = awaited

    def __call__(self) -> Any:
        return self.blocking()


Step: TypeAlias = Callable[[], Any]
Flow: TypeAlias = Generator[Step, Any, V]


def drive(flow: Flow[V]) -> V:
    """Take each step of a flow in this thread."""
    try:
        step = flow.send(None)
        while True:
            try:
                result = step()
            except BaseException as error:  # noqa: BLE001 - handed to the flow, which decides
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def drive_async(flow: Flow[V]) -> V:
    """Take each step of a flow in an event loop; a `Look` in its awaited form."""
    try:
        step = flow.send(None)
        while True:
            try:
                result = await step.awaited() if isinstance(step, Look) else step()
            except BaseException as error:  # noqa: BLE001 - handed to the flow, which decides
                step = flow.throw(error)
            else:
                step = flow.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def in_executor(step: Step) -> Any:
    """Take a short blocking step in the loop's own bounded executor."""
    return await asyncio.get_running_loop().run_in_executor(None, step)


def step_of(steps: Steps, call: Callable[[], Any]) -> Step:
    """Return a call as a step that both drivers can take."""
    if steps == "inline":
        return call
    return Look(call, call if steps == "awaited" else partial(in_executor, call))
