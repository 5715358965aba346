"""What a loop refuses before it begins: it would fail every job, or count none of them."""

import asyncio
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

from weakincentives.runtime.mailbox import InvalidParameterError, UnsupportedOperationError

from .terms import WorkerConfig

__all__ = ["check_made_of", "check_run"]


def check_made_of(mailbox: object, handler: object, dlq: object, config: object) -> None:
    """Refuse parts that no loop can be made of."""
    if not hasattr(mailbox, "receive"):
        raise InvalidParameterError(f"mailbox must be a mailbox, not {mailbox!r:.100}")
    if not callable(handler):
        raise InvalidParameterError(f"handler must be a function of a body, not {handler!r:.100}")
    if isgeneratorfunction(handler) or isasyncgenfunction(handler):
        # Called, it would run nothing, and its message would count as done.
        raise InvalidParameterError(
            f"handler must return its result, and {handler!r:.100} is a generator"
        )
    if dlq is not None and not hasattr(dlq, "should_dead_letter"):
        raise InvalidParameterError(
            f"dlq must be a DLQPolicy, such as DLQPolicy(mailbox=letters), not {dlq!r:.100}"
        )
    if config is not None and not isinstance(config, WorkerConfig):
        raise InvalidParameterError(f"config must be a WorkerConfig, not {config!r:.100}")


def check_run(max_iterations: object, handler: object) -> None:
    """Refuse a run that could not serve."""
    if max_iterations is not None and (type(max_iterations) is not int or max_iterations < 0):
        raise InvalidParameterError(
            f"max_iterations must be a whole number or None, not {max_iterations!r}"
        )
    if iscoroutinefunction(handler) and _in_event_loop():
        raise UnsupportedOperationError(
            "run() blocks, and an async handler needs an event loop of its own: "
            "inside one, await asyncio.to_thread(loop.run)"
        )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
