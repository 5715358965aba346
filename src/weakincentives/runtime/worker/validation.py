"""Checks the arguments of a loop before it runs, because a wrong one would fail every job."""

import asyncio
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import Any

from weakincentives.runtime.mailbox import InvalidParameterError, UnsupportedOperationError

from .config import WorkerConfig

MOST_THREADS = 1000

__all__ = ["check_made_of", "check_no_event_loop", "check_run", "is_async"]


def check_made_of(
    mailbox: object,
    handler: object,
    error_reply: object,
    dlq: object,
    config: object,
    resources: object,
) -> None:
    """Check the arguments of a loop's constructor."""
    if not hasattr(mailbox, "receive"):
        raise InvalidParameterError(f"mailbox must be a mailbox, not {mailbox!r:.100}")
    if not callable(handler):
        raise InvalidParameterError(f"handler must be a function of a body, not {handler!r:.100}")
    if isgeneratorfunction(handler) or isasyncgenfunction(handler):
        # Calling it would run nothing, and its message would count as done.
        raise InvalidParameterError(
            f"handler must return its result, and {handler!r:.100} is a generator"
        )
    if is_async(error_reply):
        # Its coroutine would be the reply, and nobody would await it.
        raise InvalidParameterError(
            f"error_reply must be a plain function, and {error_reply!r:.100} is async"
        )
    if dlq is not None and not hasattr(dlq, "should_dead_letter"):
        raise InvalidParameterError(
            f"dlq must be a DLQPolicy, such as DLQPolicy(mailbox=letters), not {dlq!r:.100}"
        )
    if config is not None and not isinstance(config, WorkerConfig):
        raise InvalidParameterError(f"config must be a WorkerConfig, not {config!r:.100}")
    if resources is not None and not callable(resources):
        raise InvalidParameterError(
            "resources must be a function that returns a context manager, such as "
            f"httpx.AsyncClient, not {resources!r:.100}"
        )
    if config is not None and config.concurrency > MOST_THREADS and not is_async(handler):
        raise InvalidParameterError(
            f"concurrency must be at most {MOST_THREADS} for a plain handler, because each job "
            f"takes a thread, not {config.concurrency}; an async one may have 10,000 jobs at once"
        )


def is_async(handler: Any) -> bool:
    """Return whether calling a handler gives a coroutine, so that it needs an event loop."""
    return iscoroutinefunction(handler) or iscoroutinefunction(type(handler).__call__)


def check_run(max_iterations: object) -> None:
    """Check the arguments of a run."""
    if max_iterations is not None and (type(max_iterations) is not int or max_iterations < 0):
        raise InvalidParameterError(
            f"max_iterations must be a whole number or None, not {max_iterations!r}"
        )


def check_no_event_loop() -> None:
    """Raise if an event loop runs in this thread, because run() would block it."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UnsupportedOperationError(
        "run() blocks, and an event loop runs in this thread: await run_async() instead"
    )
