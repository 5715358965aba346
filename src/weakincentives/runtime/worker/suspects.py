"""Messages whose workers died: they may kill the next one, and whatever it holds, too."""

from . import decide
from .attempt import Attempt
from .run import Shared

__all__ = ["CROWDED_SECONDS", "PUT_OFF_SECONDS", "Suspects"]

PUT_OFF_SECONDS = 60.0
"""How long to put off a message that must run alone, if another one is taking very long."""
CROWDED_SECONDS = 2.0
"""How long to put off a suspect message while enough other suspects are running."""


class Suspects:
    """The suspect messages that one thread or event loop of a worker has at work."""

    def __init__(self, shared: Shared, places: int = 1) -> None:
        self._inbox = shared.inbox
        self._thresholds = shared.executor.thresholds
        self._places = places
        self._at_work: dict[Attempt, int] = {}
        """Attempts that may have killed earlier workers, and how many died."""

    def crashes(self, attempt: Attempt) -> int:
        """Return how many workers died with the message in hand, as far as is known."""
        return decide.crashes(self._inbox.counts(attempt.message))

    def must_run_alone(self, attempt: Attempt) -> bool:
        """Return whether the process must hold nothing else while this runs."""
        return self._thresholds is not None and decide.must_run_alone(
            self._inbox.counts(attempt.message), self._thresholds
        )

    def admit(self, attempt: Attempt) -> bool:
        """Return whether a message may run beside the others now; if so, count it."""
        crashes = self.crashes(attempt)
        beside = sum(others >= crashes for others in self._at_work.values())
        if beside >= decide.room_for_suspects(crashes, self._places):
            return False
        if crashes > 1:
            self._at_work[attempt] = crashes
        return True

    def leave(self, attempt: Attempt) -> None:
        """Count it no longer."""
        self._at_work.pop(attempt, None)
