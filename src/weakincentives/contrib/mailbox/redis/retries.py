"""Retries a call whose answer was lost or was an error: for how long, and with what pauses."""

import random
from typing import TYPE_CHECKING

from weakincentives.clock import SystemClock
from weakincentives.runtime.mailbox import MailboxConnectionError, MailboxError, MailboxFullError
from weakincentives.runtime.mailbox.seam.waiting import RETRIES

from .errors import TRANSPORT, Cure, Verdict, code_of
from .script_call import Block

if TYPE_CHECKING:
    from .pool import Node

__all__ = ["RetryState", "backoff"]

RETRY_SECONDS = 15.0
"""For how many seconds after its first fault a call is retried."""

monotonic = SystemClock.monotonic


class RetryState:
    """The tries of one call so far, and what the next one must do differently."""

    def __init__(self, block: Block | None, *, repeated: bool = False) -> None:
        self.block = block
        self.interrupt = None if block is None else block.interrupt
        self.began: tuple[float, float] | None = None
        self.as_text = False
        self.repeated = repeated
        self.asked: Node | None = None
        self.mended = False
        self.refusal = ""
        """The error code if the server refused to block but ran the script."""
        self._patience = RETRY_SECONDS
        self._count = 0
        self._ends = 0.0

    def succeed(self) -> None:
        """Record that the call has succeeded, with or without faults before."""
        if self._count:
            RETRIES.get().succeeded()

    @property
    def is_interrupted(self) -> bool:
        """Whether the caller has stopped waiting."""
        return self.interrupt is not None and self.interrupt.is_set

    def note(self, fault: Exception, judged: Verdict) -> float:
        """Record a fault; return the pause before the next try, or raise if there is none."""
        self.asked = self.began = None
        if judged.cure is not Cure.ASK:  # after ASK, the wait can begin again at the new node
            self.block = None
        self._count += 1
        now = monotonic()
        self._ends = self._ends or now + self._patience
        took = self._patience - max(0.0, self._ends - now)
        error = _translated(fault, judged, took)
        if now >= self._ends or judged.cure in (Cure.MEND, Cure.FULL, Cure.GIVE_UP):
            raise error from fault
        if RETRIES.get().failed(error, took) and isinstance(fault, TRANSPORT):
            raise error from fault
        if judged.cure is Cure.LOAD:
            self.as_text = True
            return 0.0
        return backoff(self._count)


def _translated(error: Exception, judged: Verdict, patience: float) -> MailboxError:
    if judged.cure is Cure.FULL:
        return MailboxFullError(f"the server is at its maxmemory, nothing was sent: {error}")
    if judged.cure in (Cure.MEND, Cure.GIVE_UP):
        if isinstance(error, TRANSPORT) or code_of(error) in ("NOPERM", "MISCONF"):
            return MailboxConnectionError(f"the server refuses: {error}")
        return MailboxError(f"the server refuses: {error}")
    return MailboxConnectionError(f"no success within {patience:.3g} s: {error}")


def backoff(attempt: int) -> float:
    """Return how long to wait before the next attempt: at once, then up to half a second."""
    if attempt <= 1:
        return 0.0
    ceiling: float = min(0.01 * 2**attempt, 0.5)
    return ceiling * random.uniform(0.5, 1.0)
