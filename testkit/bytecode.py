"""What Python's compiler made of a function: which instructions its `try` and `with` guard.

From Python 3.12 on, where a loop ends with a condition, the compiler adds a jump back to its
beginning and guards it by nothing, also inside a `try` or a `with`. The interpreter runs signal
handlers at such a jump: what one raises there passes by every `except` and `finally` of the
function, and leaves every `with` entered.
"""

import dis
import functools
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType

__all__ = ["guard", "jumps_back", "unguarded_jumps"]


@functools.cache
def _guarded(code: CodeType) -> list[tuple[range, int]]:
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return [(range(entry.start, entry.end), entry.target) for entry in table]


def guard(code: CodeType, offset: int) -> int | None:
    """Return where an error of this instruction is handled; None if it leaves the function."""
    return next((target for places, target in _guarded(code) if offset in places), None)


@functools.cache
def jumps_back(code: CodeType) -> frozenset[int]:
    """Return the jumps with which a loop begins anew, and at which signal handlers run."""
    return frozenset(
        one.offset
        for one in dis.get_instructions(code)
        if "JUMP_BACKWARD" in one.opname and "NO_INTERRUPT" not in one.opname
    )


def unguarded_jumps(code: CodeType) -> Iterator[tuple[CodeType, int]]:
    """Yield each function in which an interrupt can pass by a `try` or `with`, and the line."""
    instructions = dis.get_instructions(code) if code.co_exceptiontable else ()
    found = [one for one in instructions if one.opname != "EXTENDED_ARG"]
    handlers = {one.offset for one in found if one.opname == "PUSH_EXC_INFO"}
    for before, jump in pairwise(found):
        if (
            jump.opname == "JUMP_BACKWARD"
            and before.opname != "CLEANUP_THROW"  # only reached after a throw() into an `await`
            and guard(code, jump.offset) is None
            and not handlers.isdisjoint(_guards(code, jump.argval))
        ):
            yield code, _line(code, jump.offset)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from unguarded_jumps(constant)


def _guards(code: CodeType, offset: int) -> Iterator[int]:
    """Yield all handlers around an instruction, also those of a comprehension or a generator."""
    target = guard(code, offset)
    while target is not None:
        yield target
        target = guard(code, target)


def _line(code: CodeType, offset: int) -> int:
    return next(line for start, end, line in code.co_lines() if start <= offset < end) or 0
