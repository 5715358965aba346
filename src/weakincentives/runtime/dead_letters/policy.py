"""Decides when a message is given up, and where its dead letter goes."""

from collections.abc import Iterable
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import InvalidParameterError, Mailbox, Message

from .letter import DeadLetter

__all__ = ["DLQPolicy"]

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)


@FrozenDataclass()
class DLQPolicy(Generic[T, R]):
    """Where dead letters go and when a message becomes one; subclass it to decide otherwise."""

    mailbox: Mailbox[DeadLetter[T], None]
    """The mailbox that dead letters are sent to."""
    max_delivery_count: int = 5
    """A message is given up if it fails in this delivery or a later one; deliveries after which its
    handler asked to have it later (`RetryAfter`) do not count. A message whose workers have crashed
    this many times is given up without running it again."""
    include_errors: frozenset[type[Exception]] | None = None
    """Errors, including subclasses, after which a message is given up at once."""
    exclude_errors: frozenset[type[Exception]] | None = None
    """Errors, including subclasses, that are retried beyond ``max_delivery_count``."""
    absolute_max_delivery_count: int = 100
    """A message is given up after this many deliveries, whatever the errors were."""

    def __post_init__(self) -> None:
        for name, count in (
            ("max_delivery_count", self.max_delivery_count),
            ("absolute_max_delivery_count", self.absolute_max_delivery_count),
        ):
            if type(count) is not int:
                raise InvalidParameterError(f"{name} must be a whole number, not {count!r}")
        if not 1 <= self.max_delivery_count <= self.absolute_max_delivery_count:
            raise InvalidParameterError(
                f"max_delivery_count must be from 1 to absolute_max_delivery_count "
                f"({self.absolute_max_delivery_count}), not {self.max_delivery_count!r}"
            )
        # Checked here, because a wrong value found only after a failure would block giving up.
        _check_errors("include_errors", self.include_errors)
        _check_errors("exclude_errors", self.exclude_errors)

    def should_dead_letter(self, message: Message[T, Any], error: Exception) -> bool:
        """Return True to give up the message, False to retry it with backoff."""
        if self.exclude_errors and isinstance(error, tuple(self.exclude_errors)):
            return message.delivery_count >= self.absolute_max_delivery_count
        if self.include_errors and isinstance(error, tuple(self.include_errors)):
            return True
        # Deliveries after which a handler asked for more time say nothing against the message.
        attempts = getattr(message, "attempts", message.delivery_count)
        return attempts >= self.max_delivery_count


def _check_errors(name: str, errors: object) -> None:
    if errors is None:
        return
    if not isinstance(errors, Iterable) or not all(
        isinstance(error, type) and issubclass(error, BaseException) for error in errors
    ):
        raise InvalidParameterError(
            f"{name} must be a set of exception types, such as frozenset({{TimeoutError}}), "
            f"not {errors!r}"
        )
