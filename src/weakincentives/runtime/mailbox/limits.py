"""The largest values that a backend accepts, and the checks of arguments and names."""

import math
import re
from dataclasses import dataclass
from typing import TypeGuard

from .errors import InvalidParameterError

__all__ = [
    "Limits",
    "check_id",
    "check_max_bytes",
    "check_positive",
    "in_digits",
    "is_number",
    "limits_with",
]

FEWEST_BYTES, MOST_BYTES = 1024, 256 * 1024 * 1024
TEN_YEARS = 10 * 365 * 86_400.0
ID = re.compile(r"[A-Za-z0-9_.:=-]{1,128}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest values a backend accepts; times in seconds, sizes in bytes."""

    max_delay: float = TEN_YEARS
    max_visibility: float = TEN_YEARS
    max_wait: float = TEN_YEARS
    max_batch: int = 1000
    max_send_batch: int = 1000
    """How many messages ``send_batch`` stores in one step; ``max_batch`` limits the rest."""
    max_bytes: int = 1024 * 1024
    fractions: bool = True
    """Whether times may have fractions of a second."""

    def receive(self, count: object, visibility: object, wait: object) -> tuple[int, float, float]:
        """Check the arguments of a receive."""
        return (
            self.batch(count),
            self._seconds("visibility_timeout", visibility, self.max_visibility),
            self._seconds("wait_time_seconds", wait, self.max_wait),
        )

    def delay(self, value: object) -> float:
        """Check ``delay_seconds``."""
        return self._seconds("delay_seconds", value, self.max_delay)

    def visibility(self, value: object, name: str = "visibility_timeout") -> float:
        """Check the length of a lease."""
        return self._seconds(name, value, self.max_visibility)

    def batch(self, value: object, name: str = "max_messages") -> int:
        """Check the size of a batch."""
        if type(value) is not int or not 1 <= value <= self.max_batch:
            raise InvalidParameterError(
                f"{name} must be a whole number from 1 to {self.max_batch}, not {value!r}"
            )
        return value

    def rounded(self, seconds: float) -> float:
        """Round a computed lease or delay up, or down to the limit, so that it is accepted."""
        return min(seconds if self.fractions else math.ceil(seconds), self.max_visibility)

    def _seconds(self, name: str, value: object, limit: float) -> float:
        # The common case first: this runs on every call.
        if (type(value) is int or (type(value) is float and self.fractions)) and (
            0 <= value <= limit
        ):
            return value
        kind = "a number of seconds" if self.fractions else "a whole number of seconds"
        raise InvalidParameterError(
            f"{name} must be {kind} from 0 to {in_digits(limit)}, not {value!r}"
        )


def check_max_bytes(value: object, limit: int = MOST_BYTES) -> int:
    """Check ``max_bytes``, the size of the largest message that a mailbox accepts."""
    if type(value) is not int or not FEWEST_BYTES <= value <= limit:
        raise InvalidParameterError(
            f"max_bytes must be a whole number from {FEWEST_BYTES} to {limit}, not {value!r}"
        )
    return value


def limits_with(max_bytes: object) -> Limits:
    """Return the default limits, with this ``max_bytes`` unless it is None."""
    return Limits() if max_bytes is None else Limits(max_bytes=check_max_bytes(max_bytes))


def check_id(name: str, value: object) -> str:
    """Check the id of a message or a reply."""
    if not isinstance(value, str) or not ID.fullmatch(value):
        raise InvalidParameterError(
            f"{name} must be 1 to 128 characters of A-Z a-z 0-9 _ . : = -, not {value!r:.150}"
        )
    # Plain text even if it is a subclass with another __str__, such as an enum.
    return str.__str__(value)


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether this is a number; booleans and NaN do not count as numbers."""
    return isinstance(value, int | float) and type(value) is not bool and value == value


def in_digits(seconds: float) -> str:
    """Return a limit as people write it."""
    return f"{seconds:.0f} (ten years)" if seconds == TEN_YEARS else f"{seconds:.12g}"


def check_positive(name: str, value: object, limit: float = TEN_YEARS) -> float:
    """Check a number of seconds that must be above zero."""
    if not is_number(value) or not 0 < value <= limit:
        raise InvalidParameterError(
            f"{name} must be a number of seconds above 0 and up to {in_digits(limit)}, "
            f"not {value!r}"
        )
    return value
