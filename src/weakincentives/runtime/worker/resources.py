"""What the jobs of a run share: clients, pools and limits, made when it begins."""

from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
)
from typing import Any, TypeAlias

from weakincentives.runtime.mailbox import InvalidParameterError

__all__ = ["Resources", "enter", "enter_async"]

Resources: TypeAlias = Callable[
    [], AbstractContextManager[Any, Any] | AbstractAsyncContextManager[Any, Any]
]
"""Returns a context manager, plain or async, which a run enters once."""


def enter(factory: Resources | None, stack: ExitStack) -> Any:
    """Return the resources of a run of threads; None if there are none."""
    if factory is None:
        return None
    manager = factory()
    if isinstance(manager, AbstractContextManager):
        return stack.enter_context(manager)
    if isinstance(manager, AbstractAsyncContextManager):
        raise InvalidParameterError(
            "resources returned an async context manager, which needs an async handler"
        )
    raise _no_manager(manager)


async def enter_async(factory: Resources | None, stack: AsyncExitStack) -> Any:
    """Return the resources of a run in an event loop; None if there are none."""
    if factory is None:
        return None
    manager = factory()
    if isinstance(manager, AbstractAsyncContextManager):
        return await stack.enter_async_context(manager)
    if isinstance(manager, AbstractContextManager):
        return stack.enter_context(manager)
    raise _no_manager(manager)


def _no_manager(manager: object) -> InvalidParameterError:
    return InvalidParameterError(
        f"resources must return a context manager, such as a client, not {manager!r:.100}"
    )
