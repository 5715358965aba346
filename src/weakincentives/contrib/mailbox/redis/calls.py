"""One run of a script: what is asked, how far it has come, and what came of it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from weakincentives.clock import SystemClock
from weakincentives.runtime.mailbox import MailboxConnectionError, MailboxError, MailboxFullError

from .faults import TRANSPORT, Cure, Verdict, backoff, code_of
from .packing import Head
from .wire import Interrupt

if TYPE_CHECKING:
    from .link import Node

__all__ = ["INTERRUPTED", "Block", "Call", "Outcome", "Tries"]

monotonic = SystemClock.monotonic


class Call(NamedTuple):
    """One run of a script."""

    head: Head
    arguments: Sequence[Any] = ()
    settings: tuple[Any, ...] = ()
    """The arguments before these, if many calls have them in common."""
    repeat: int | None = None
    """Which argument says "1" if this may be the repeat of a call whose answer was lost."""
    then: bytes | None = None
    """A command that follows on the same connection."""

    def packed(self) -> bytes:
        """Return the call as bytes, as it is made the first time."""
        return self.head.packed(self.settings, self.arguments)

    def packed_again(self, *, as_text: bool, repeated: bool) -> bytes:
        """Return the call as bytes after a fault."""
        arguments = [*self.settings, *self.arguments]
        if repeated and self.repeat is not None:
            arguments[self.repeat] = b"1"
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


INTERRUPTED = Outcome(None)


class Tries:
    """How far a call has come."""

    def __init__(self, block: Block | None, patience: float, *, repeated: bool = False) -> None:
        self.block = block
        self.interrupt = None if block is None else block.interrupt
        self.began: tuple[float, float] | None = None
        self.as_text = False
        self.repeated = repeated
        self.asked: Node | None = None
        self._patience = patience
        self._count = 0
        self._ends = 0.0

    def note(self, fault: Exception, judged: Verdict) -> float:
        """Take note of a fault; return how long to wait, or raise if that was the last one."""
        self.block = self.asked = self.began = None
        self._count += 1
        now = monotonic()
        self._ends = self._ends or now + self._patience
        if now >= self._ends or judged.cure in (Cure.FULL, Cure.GIVE_UP):
            raise _translated(fault, judged, self._patience) from fault
        if judged.cure is Cure.LOAD:
            self.as_text = True
            return 0.0
        return backoff(self._count)


def _translated(error: Exception, judged: Verdict, patience: float) -> MailboxError:
    if judged.cure is Cure.FULL:
        return MailboxFullError(f"the server is at its maxmemory, nothing was sent: {error}")
    if judged.cure is Cure.GIVE_UP:
        if isinstance(error, TRANSPORT) or code_of(error) in ("NOPERM", "MISCONF"):
            return MailboxConnectionError(f"the server refuses: {error}")
        return MailboxError(f"the server refuses: {error}")
    return MailboxConnectionError(f"no success within {patience:g} s: {error}")
