"""What a worker does while its mailbox cannot be reached."""

from weakincentives.error_text import error_type
from weakincentives.runtime.events import MailboxUnreachable
from weakincentives.runtime.mailbox import InvalidParameterError, UnsupportedOperationError

from .backoff import transport_pause
from .run import Shared
from .shortage import is_shortage

__all__ = ["MISUSE", "MailboxFaults"]

MISUSE = (InvalidParameterError, UnsupportedOperationError)
"""Errors of the caller, which a retry would not cure."""
NOTICED_AFTER_SECONDS = 0.5
"""How long a fault must last before the worker reports it, while the backend still retries."""


class MailboxFaults:
    """The faults that one thread or event loop of a worker has met in a row."""

    def __init__(self, shared: Shared) -> None:
        self.count = 0
        self._shared = shared

    def notice(self, error: Exception, seconds: float) -> None:
        """Report a fault that has lasted this long while the backend retries."""
        if seconds >= NOTICED_AFTER_SECONDS and not self.count:
            self.count = 1
            self._shared.heartbeat.missed(error)
            self._tell(error, 0.0)

    def over(self) -> None:
        """Record that the mailbox can be reached again, while a receive is still waiting."""
        if self.count:
            self.count = 0
            self._shared.heartbeat.looked()
            self._shared.outage.over()

    def pause_after(self, error: Exception) -> float:
        """Report a step that failed; return how long to pause before the next one."""
        if is_shortage(error):
            self._shared.shortage.met(error)
        self.count += 1
        pause = transport_pause(self.count)
        self._tell(error, pause)
        return pause

    def _tell(self, error: Exception, pause: float) -> None:
        self._shared.outage.met(error)
        self._shared.executor.publish(MailboxUnreachable, error_type(error), pause)
