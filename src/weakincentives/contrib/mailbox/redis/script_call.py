"""One call of a script: its arguments, and its outcome."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from weakincentives.clock import SystemClock

from .connection import Interrupt
from .resp import Head

__all__ = ["INTERRUPTED", "Block", "Call", "Outcome"]

monotonic = SystemClock.monotonic


class Call(NamedTuple):
    """One call of a script."""

    head: Head
    arguments: Sequence[Any] = ()
    settings: tuple[Any, ...] = ()
    """The arguments that come first and that many calls share."""
    then: bytes | None = None
    """A command that follows on the same connection."""

    def packed(self) -> bytes:
        """Return the bytes of the first try."""
        return self.head.packed(self.settings, self.arguments)

    def packed_again(self, *, as_text: bool, repeated: bool, one_key: bool = False) -> bytes:
        """Return the bytes of a retry; ``one_key`` is for a slot that is being migrated."""
        arguments = [*self.settings, *self.arguments]
        place = self.head.script.repeated
        if repeated and place is not None:
            arguments[place] = b"1"
        if one_key:
            return self.head.with_one_key(arguments)
        return self.head.as_text(arguments) if as_text else self.head.packed((), arguments)


class Block(NamedTuple):
    """The command that blocks until the script may run, its timeout, and what ends it early."""

    command: bytes
    seconds: float
    interrupt: Interrupt | None = None
    timed: bool = False
    """Ask the server for its time first, to compute later when the script ran."""


class Outcome(NamedTuple):
    """The answers to a script and to its ``then`` command, and how they were obtained."""

    answer: Any
    after: Any = None
    repeated: bool = False
    """Whether an earlier try may have been executed."""
    began: tuple[float, float] | None = None
    """If the call was timed: a moment before the wait, by our clock (at the latest) and the
    server's."""
    unwaited: bool = False
    """Whether the server refused to block, and ran the script at once."""


INTERRUPTED = Outcome(None)
