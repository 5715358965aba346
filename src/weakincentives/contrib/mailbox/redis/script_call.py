"""One run of a script: what is asked, how far it has come, and what came of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weakincentives.clock import SystemClock

from .connection import Interrupt
from .resp import Head

if TYPE_CHECKING:
    pass

__all__ = ["INTERRUPTED", "Block", "Call", "Outcome"]

monotonic = SystemClock.monotonic


class Call(NamedTuple):
    """One run of a script."""

    head: Head
    arguments: Sequence[Any] = ()
    settings: tuple[Any, ...] = ()
    """The arguments before these, if many calls have them in common."""
    then: bytes | None = None
    """A command that follows on the same connection."""

    def packed(self) -> bytes:
        """Return the call as bytes, as it is made the first time."""
        return self.head.packed(self.settings, self.arguments)

    def packed_again(self, *, as_text: bool, repeated: bool, one_key: bool = False) -> bytes:
        """Return the call as bytes after a fault; with ``one_key`` for a slot on the move."""
        arguments = [*self.settings, *self.arguments]
        place = self.head.script.repeated
        if repeated and place is not None:
            arguments[place] = b"1"
        if one_key:
            return self.head.with_one_key(arguments)
        return self.head.as_text(arguments) if as_text else self.head.packed((), arguments)


class Block(NamedTuple):
    """A command that blocks before the script runs, for how long, and what ends it early."""

    command: bytes
    seconds: float
    interrupt: Interrupt | None = None
    timed: bool = False
    """Ask the server for its time first, to tell later when the script ran."""


class Outcome(NamedTuple):
    """The script's answer, that of the command which followed it, and how they came about."""

    answer: Any
    after: Any = None
    repeated: bool = False
    """An earlier attempt may have been carried out."""
    began: tuple[float, float] | None = None
    """The same moment by our clock, at the latest, and by the server's, if the call was timed."""
    unwaited: bool = False
    """The server would not block, so that the answer is of now and not of later."""


INTERRUPTED = Outcome(None)
