"""Tells an interrupt from outside, such as Ctrl-C, from one that a job raised itself."""

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextvars import Context
from functools import partial
from inspect import getattr_static
from opcode import opmap
from types import CodeType, TracebackType

__all__ = ["is_from_outside", "raised_in"]

RAISE = opmap["RAISE_VARARGS"]
LONGEST_CHAIN = 10


def is_from_outside(error: BaseException | None) -> bool:
    """Return whether a signal raised this error, rather than the code that it interrupted.

    Only `KeyboardInterrupt` and `SystemExit` can say so, and only in the main thread, where
    Python runs signal handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    handlers = set(_handlers())
    for _ in range(LONGEST_CHAIN):
        if not isinstance(error, KeyboardInterrupt | SystemExit):
            return False
        if _came_from_signal(error, handlers):
            return True
        error = error.__context__  # it may have been caught and raised again
    return False


def raised_in(error: BaseException) -> Context | None:
    """Return the context of the task that ended its event loop with this error, if one did.

    A task that raises `SystemExit` raises it out of its event loop, past the tasks that await it.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code is asyncio.Handle._run.__code__:
            context: Context = frame.f_locals["self"]._context
            return context
        trace = trace.tb_next
    return None


def _came_from_signal(error: BaseException, handlers: set[CodeType]) -> bool:
    places = list(_places(error.__traceback__))
    if any(code in handlers for code, _ in places):
        return True
    if isinstance(error, SystemExit) or not places:
        return False
    # Python's own handler has no frame: it strikes anywhere but at a `raise` statement. What
    # asyncio raises in place of the interrupt that it has caught comes from outside too.
    code, instruction = places[-1]
    return code is asyncio.Runner.run.__code__ or code.co_code[instruction] != RAISE


def _places(trace: TracebackType | None) -> Iterator[tuple[CodeType, int]]:
    while trace is not None:
        yield trace.tb_frame.f_code, trace.tb_lasti
        trace = trace.tb_next


def _handlers() -> Iterator[CodeType]:
    """Iterate over the code of the signal handlers that are written in Python."""
    for number in signal.valid_signals():
        handler: object = signal.getsignal(number)
        while isinstance(handler, partial):
            handler = handler.func
        for function in (handler, getattr_static(type(handler), "__call__", None)):
            code = getattr(function, "__code__", None)
            if isinstance(code, CodeType):
                yield code
