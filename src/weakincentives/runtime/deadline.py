"""What a job may take: time until a moment, tokens and money up to a sum."""

from datetime import UTC, datetime, timedelta

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.limits import TEN_YEARS, is_number

__all__ = ["Budget", "BudgetExceededError", "Deadline", "DeadlineExceededError", "Usage"]


class DeadlineExceededError(WinkError, TimeoutError):
    """The deadline of this request has passed; it is not run any more."""


class BudgetExceededError(WinkError):
    """The budget of this request is used up."""


@FrozenDataclass()
class Deadline:
    """The moment after which a result is of no use."""

    expires_at: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.expires_at, datetime) or self.expires_at.tzinfo is None:
            raise InvalidParameterError(
                f"expires_at must be a datetime with a time zone, as datetime.now(UTC) is, "
                f"not {self.expires_at}"
            )

    @staticmethod
    def after(seconds: float) -> "Deadline":
        """Return the deadline that lies so many seconds ahead."""
        if not is_number(seconds) or not abs(seconds) <= TEN_YEARS:
            raise InvalidParameterError(
                f"seconds must be a number of seconds up to {TEN_YEARS:g}, not {seconds!r}"
            )
        return Deadline(datetime.now(UTC) + timedelta(seconds=seconds))

    def remaining(self, now: datetime | None = None) -> float:
        """Return the seconds that are left; negative once it has passed."""
        return (self.expires_at - (now or datetime.now(UTC))).total_seconds()

    def check(self, now: datetime | None = None) -> None:
        """Raise `DeadlineExceededError` if it has passed."""
        late = -self.remaining(now)
        if late >= 0:
            raise DeadlineExceededError(
                f"the deadline {self.expires_at.isoformat()} has passed {late:.1f} s ago"
            )


@FrozenDataclass()
class Usage:
    """What was spent so far."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of both."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cost + other.cost,
        )


@FrozenDataclass()
class Budget:
    """The most that a request may spend; None is no limit."""

    max_input_tokens: int | None = None
    max_output_tokens: int | None = None
    max_total_tokens: int | None = None
    max_cost: float | None = None

    def __post_init__(self) -> None:
        for name, limit in (
            ("max_input_tokens", self.max_input_tokens),
            ("max_output_tokens", self.max_output_tokens),
            ("max_total_tokens", self.max_total_tokens),
            ("max_cost", self.max_cost),
        ):
            if limit is not None and (not is_number(limit) or limit < 0):
                raise InvalidParameterError(f"{name} must be 0 or more, or None, not {limit!r}")

    def left(self, usage: Usage) -> "Budget":
        """Return the budget that remains after ``usage``."""
        return Budget(
            _less(self.max_input_tokens, usage.input_tokens),
            _less(self.max_output_tokens, usage.output_tokens),
            _less(self.max_total_tokens, usage.input_tokens + usage.output_tokens),
            None if self.max_cost is None else max(0.0, self.max_cost - usage.cost),
        )

    def check(self, usage: Usage) -> None:
        """Raise `BudgetExceededError` if ``usage`` is more than this budget."""
        total = usage.input_tokens + usage.output_tokens
        for name, limit, spent in (
            ("max_input_tokens", self.max_input_tokens, usage.input_tokens),
            ("max_output_tokens", self.max_output_tokens, usage.output_tokens),
            ("max_total_tokens", self.max_total_tokens, total),
            ("max_cost", self.max_cost, usage.cost),
        ):
            if limit is not None and spent > limit:
                raise BudgetExceededError(f"{spent:g} spent of {name}={limit:g}")


def _less(limit: int | None, spent: int) -> int | None:
    return None if limit is None else max(0, limit - spent)
