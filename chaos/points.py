"""Interrupts at chosen points: calls a handler where the interpreter would call a signal's."""

import dis
import functools
import gc
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any

from testkit.bytecode import guard, jumps_back

__all__ = ["Points"]

TOOL = 4
"""A number of `sys.monitoring` that has no other use."""


class Points:
    """Watches what is called inside a ``with``, and calls a handler at the point of this number.

    A point is where the interpreter looks for signals: after a call, at the beginning of a
    function, and where a loop begins anew. It does so as part of that very instruction, and one
    who watches can only raise before one: at a jump, which does nothing else, but after a call
    only before the next instruction. Where that is not guarded by the same ``with`` or ``try``,
    nothing may be raised.

    The garbage collector is off meanwhile: what it calls is no part of the operation, and would
    swallow what the handler raises.
    """

    def __init__(
        self, raising: bool, at: int = -1, handler: Callable[[], None] = lambda: None
    ) -> None:
        self.count = 0
        self._raising = raising
        self._at = at
        self._handler = handler
        self._before: dict[int, int] = {}

    @property
    def has_struck(self) -> bool:
        """Whether the point of this number was reached."""
        return self.count == self._at

    def __enter__(self) -> "Points":
        self._collecting = gc.isenabled()
        gc.disable()
        self._outside: FrameType | None = sys._getframe(1)
        self._thread = threading.get_ident()
        self._watch()
        return self

    def __exit__(self, *_: object) -> None:
        self._unwatch()
        self._outside = None
        if self._collecting:
            gc.enable()

    if sys.version_info >= (3, 12):
        # What `sys.settrace` reports of instructions is incomplete from Python 3.13 on.

        def _watch(self) -> None:
            instruction = sys.monitoring.events.INSTRUCTION
            sys.monitoring.use_tool_id(TOOL, "points")
            sys.monitoring.register_callback(TOOL, instruction, self._instruction)
            sys.monitoring.set_events(TOOL, instruction)

        def _unwatch(self) -> None:
            if sys.monitoring.get_tool(TOOL) is not None:
                sys.monitoring.set_events(TOOL, 0)
                sys.monitoring.free_tool_id(TOOL)

        def _instruction(self, code: CodeType, offset: int) -> None:
            frame = sys._getframe(1)
            if (
                threading.get_ident() == self._thread
                and frame is not self._outside
                and code.co_filename != __file__
            ):
                self._look(frame, offset)

    else:

        def _watch(self) -> None:
            self._former = sys.gettrace()
            sys.settrace(self._trace)

        def _unwatch(self) -> None:
            sys.settrace(self._former)

        def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
            if frame.f_code.co_filename == __file__:
                return None
            if event == "call":
                frame.f_trace_opcodes, frame.f_trace_lines = True, False
            elif event == "opcode":
                self._look(frame, frame.f_lasti)
            return self._trace

    def _look(self, frame: FrameType, offset: int) -> None:
        """Count a point before this instruction, and strike if it is the one."""
        code = frame.f_code
        start, first = _beginning(code)
        # The start is not always reported, and another frame may have had this id before.
        before = start if offset == first else self._before.get(id(frame), -1)
        self._before[id(frame)] = offset
        # What the compiler adds has no line. It is reached by an exception, such as the one that
        # closes a generator, and no signal is looked for on the way.
        if frame.f_lineno is not None and self.is_point(code, before, offset):
            self.count += 1
            if self.has_struck:
                self._unwatch()
                self._handler()

    def is_point(self, code: CodeType, before: int, offset: int) -> bool:
        """Return whether to count a point between these two instructions."""
        if offset in jumps_back(code):
            return True
        guards = _points(code)
        return before in guards and not (self._raising and guards[before] != guard(code, offset))


@functools.cache
def _beginning(code: CodeType) -> tuple[int, int]:
    """Return the instruction that starts a function, and the one after it."""
    return next(
        (one.offset, then.offset)
        for one, then in pairwise(dis.get_instructions(code))
        if one.opname == "RESUME"
    )


@functools.cache
def _points(code: CodeType) -> dict[int, Any]:
    """Return the instructions that look for signals, and what catches what is raised there."""
    found = list(dis.get_instructions(code))
    return {
        one.offset: guard(code, one.offset)
        for one, then in zip(found, [*found[1:], found[-1]], strict=True)
        if (one.opname.startswith("CALL") and not _takes_coroutine(code, then))
        or one.opname == "RESUME"
    }


def _takes_coroutine(code: CodeType, then: dis.Instruction) -> bool:
    """Whether the call before made a coroutine: nobody looks for signals before it is taken.

    It is awaited, returned to the driver, or the driver remembers it to close it.
    """
    return (
        then.opname == "GET_AWAITABLE"
        or (then.opname == "RETURN_VALUE" and code.co_name == "<lambda>")
        or (then.opname == "STORE_FAST" and then.argval == "coroutine")
    )
