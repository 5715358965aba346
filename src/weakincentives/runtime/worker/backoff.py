"""How long to wait before trying again."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.limits import TEN_YEARS, in_digits, is_number

__all__ = ["Backoff", "transport_pause"]


DEFAULT_BASE = 2.0


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff in seconds: ``base`` doubled with each attempt, up to ``cap``.

    With ``jitter`` the wait is random between 0 and that, so that jobs that failed together do not
    come back together. The defaults are those of a `Worker`; a ``cap`` below the default ``base``
    lowers the base too.
    """

    base: float = DEFAULT_BASE
    cap: float = 900.0
    jitter: bool = True

    def __post_init__(self) -> None:
        numbers = is_number(self.base) and is_number(self.cap)
        if numbers and 0 <= self.cap < self.base == DEFAULT_BASE:
            object.__setattr__(self, "base", float(self.cap))
        if not numbers or not 0 <= self.base <= self.cap <= TEN_YEARS:
            raise InvalidParameterError(
                f"a Backoff has 0 <= base <= cap <= {in_digits(TEN_YEARS)} seconds, "
                f"not base={self.base!r}, cap={self.cap!r}"
            )

    def delay(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """Return the wait after this attempt; the first attempt is number 1."""
        # Beyond 2**62 the cap decides for any base that a clock can measure.
        longest = min(self.cap, self.base * 2.0 ** min(max(attempt - 1, 0), 62))
        return longest * draw() if self.jitter else longest


_TRANSPORT = Backoff(base=0.2, cap=5.0)


def transport_pause(failures: int, draw: Callable[[], float] = random.random) -> float:
    """Return the pause after a mailbox failed this many times in a row: 0.1 to 5 s."""
    return max(0.1, _TRANSPORT.delay(failures, draw))
