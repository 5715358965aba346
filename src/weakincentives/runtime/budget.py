"""The limits of a request: a deadline, and a budget of tokens and money."""

from datetime import UTC, datetime, timedelta

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.limits import TEN_YEARS, in_digits, is_number

__all__ = ["Budget", "BudgetExceededError", "Deadline", "DeadlineExceededError", "Usage"]


class DeadlineExceededError(WinkError, TimeoutError):
    """The deadline of this request has passed, so it is not run."""


class BudgetExceededError(WinkError):
    """This request has used more than its budget."""


@FrozenDataclass()
class Deadline:
    """The time after which a result is useless."""

    expires_at: datetime

    def __post_init__(self) -> None:
        if not isinstance(self.expires_at, datetime) or self.expires_at.tzinfo is None:
            raise InvalidParameterError(
                f"expires_at must be a datetime with a time zone, as datetime.now(UTC) is, "
                f"not {self.expires_at}"
            )

    @staticmethod
    def after(seconds: float) -> "Deadline":
        """Return a deadline that is ``seconds`` from now."""
        if not is_number(seconds) or not abs(seconds) <= TEN_YEARS:
            raise InvalidParameterError(
                f"seconds must be a number of seconds up to {in_digits(TEN_YEARS)}, not {seconds!r}"
            )
        return Deadline(datetime.now(UTC) + timedelta(seconds=seconds))

    def remaining(self, now: datetime | None = None) -> float:
        """Return the seconds until the deadline; negative if it has passed."""
        return (self.expires_at - (now or datetime.now(UTC))).total_seconds()

    def check(self, now: datetime | None = None) -> None:
        """Raise `DeadlineExceededError` if the deadline has passed."""
        late = -self.remaining(now)
        if late >= 0:
            raise DeadlineExceededError(
                f"the deadline {self.expires_at.isoformat()} passed {late:.1f} s ago"
            )


@FrozenDataclass()
class Usage:
    """The tokens and the money used so far."""

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
    """The most tokens and money that a request may use; None means no limit."""

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
        """Return what remains of this budget after ``usage``."""
        return Budget(
            _less(self.max_input_tokens, usage.input_tokens),
            _less(self.max_output_tokens, usage.output_tokens),
            _less(self.max_total_tokens, usage.input_tokens + usage.output_tokens),
            None if self.max_cost is None else max(0.0, self.max_cost - usage.cost),
        )

    def check(self, usage: Usage) -> None:
        """Raise `BudgetExceededError` if ``usage`` exceeds this budget."""
        total = usage.input_tokens + usage.output_tokens
        for name, limit, spent in (
            ("max_input_tokens", self.max_input_tokens, usage.input_tokens),
            ("max_output_tokens", self.max_output_tokens, usage.output_tokens),
            ("max_total_tokens", self.max_total_tokens, total),
            ("max_cost", self.max_cost, usage.cost),
        ):
            if limit is not None and spent > limit:
                raise BudgetExceededError(f"used {spent:g}, more than {name}={limit:g}")


def _less(limit: int | None, spent: int) -> int | None:
    return None if limit is None else max(0, limit - spent)
