"""What a backend accepts, and the checks that say so before anything happens."""

import math
import re
from dataclasses import dataclass
from typing import TypeGuard

from .errors import InvalidParameterError

__all__ = ["Capabilities", "Limits", "check_name", "check_positive", "is_number"]

TEN_YEARS = 10 * 365 * 86_400.0
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,80}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Limits:
    """The largest values a backend accepts; times in seconds, sizes in bytes."""

    max_delay: float = TEN_YEARS
    max_visibility: float = TEN_YEARS
    max_wait: float = TEN_YEARS
    max_batch: int = 1000
    max_send_batch: int = 1000
    """How many messages ``send_batch`` takes; ``max_batch`` is for all else."""
    max_bytes: int = 1024 * 1024
    fractions: bool = True

    def receive(self, count: object, visibility: object, wait: object) -> tuple[int, float, float]:
        """Check what a receive asks for."""
        return self.batch(count), self.visibility(visibility), self.wait(wait)

    def delay(self, value: object) -> float:
        """Check ``delay_seconds``."""
        return self._seconds("delay_seconds", value, self.max_delay)

    def visibility(self, value: object, name: str = "visibility_timeout") -> float:
        """Check the length of a lease."""
        return self._seconds(name, value, self.max_visibility)

    def wait(self, value: object) -> float:
        """Check ``wait_time_seconds``."""
        return self._seconds("wait_time_seconds", value, self.max_wait)

    def batch(self, value: object, name: str = "max_messages") -> int:
        """Check the size of a batch."""
        return self._count(name, value, self.max_batch)

    def send_batch(self, value: object) -> int:
        """Check how many bodies are sent at once."""
        return self._count("len(bodies)", value, self.max_send_batch)

    def _count(self, name: str, value: object, limit: int) -> int:
        if type(value) is not int or not 1 <= value <= limit:
            raise InvalidParameterError(
                f"{name} must be a whole number from 1 to {limit}, not {value!r}"
            )
        return value

    def rounded(self, seconds: float) -> float:
        """Return a lease or delay that a loop computed as this backend takes it: no shorter."""
        return min(seconds if self.fractions else math.ceil(seconds), self.max_visibility)

    def _seconds(self, name: str, value: object, limit: float) -> float:
        # The common case first: this runs on every call.
        if (type(value) is int or (type(value) is float and self.fractions)) and (
            0 <= value <= limit
        ):
            return value
        kind = "a number of seconds" if self.fractions else "a whole number of seconds"
        raise InvalidParameterError(f"{name} must be {kind} from 0 to {limit:g}, not {value!r}")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do; the contract suite tests each as declared."""

    ordered: bool = True
    """First deliveries come in the order of sending."""
    idempotent_send: bool = True
    """A repeated ``message_id`` is the same message."""
    atomic_batches: bool = True
    """``send_batch`` is all or nothing."""
    fenced: bool = True
    """A handle whose lease ran out is refused by the backend's own clock."""
    nack_counts: bool = True
    """``Message.nack_count`` is kept."""
    delays: bool = True
    """A single message may be delayed."""
    peeks: bool = True
    """``peek()`` and leasing by id work."""
    exact_counts: bool = True
    """``approximate_count()`` and ``stats()`` are exact."""
    long_polls: bool = False
    """A wait is a look that the backend itself prolongs: each look costs, so none comes before."""


def check_name(value: object, name: str = "name") -> str:
    """Check the name of a queue before it reaches a key, a path or a URL."""
    if not isinstance(value, str) or not NAME.fullmatch(value):
        raise InvalidParameterError(
            f"{name} must be 1 to 80 characters of A-Z a-z 0-9 _ . : -, not {value!r:.100}"
        )
    return value


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether this is a number that can be counted with; True and NaN are none."""
    return isinstance(value, int | float) and type(value) is not bool and value == value


def check_positive(name: str, value: object, limit: float = TEN_YEARS) -> float:
    """Check a span of time that must be more than nothing."""
    if not is_number(value) or not 0 < value <= limit:
        raise InvalidParameterError(
            f"{name} must be a number of seconds above 0 and up to {limit:g}, not {value!r}"
        )
    return value
