"""When a message is given up, and who looks after what was."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox import InvalidParameterError, Mailbox, Message

from .backoff import Backoff
from .dead_letter import DeadLetter
from .heartbeat import Heartbeat
from .replay import replay_dead_letters
from .type_arguments import arguments_of, bind
from .worker import Worker, WorkerConfig

__all__ = ["DLQConsumer", "DLQPolicy", "DeadLetter", "replay_dead_letters"]

T = TypeVar("T", default=Any)
R = TypeVar("R", default=Any)

ONE_HOUR = 3600.0


@FrozenDataclass()
class DLQPolicy(Generic[T, R]):
    """Where dead letters go, and when a message becomes one. Subclass it to decide otherwise."""

    mailbox: Mailbox[DeadLetter[T], None]
    """Where dead letters are sent."""
    max_delivery_count: int = 5
    """A message that fails when it was received so many times is given up. One whose workers
    died so many times is given up unread."""
    include_errors: frozenset[type[Exception]] | None = None
    """Errors that give a message up at once, subclasses too."""
    exclude_errors: frozenset[type[Exception]] | None = None
    """Errors that are retried beyond ``max_delivery_count``, subclasses too."""
    absolute_max_delivery_count: int = 100
    """Whatever the errors, a message is given up after so many deliveries."""

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
        # Found only when a job has failed, they would keep it from ever being given up.
        _check_errors("include_errors", self.include_errors)
        _check_errors("exclude_errors", self.exclude_errors)

    def should_dead_letter(self, message: Message[T, Any], error: Exception) -> bool:
        """Return True to give the message up, False to retry it with backoff."""
        if self.exclude_errors and isinstance(error, tuple(self.exclude_errors)):
            return message.delivery_count >= self.absolute_max_delivery_count
        if self.include_errors and isinstance(error, tuple(self.include_errors)):
            return True
        return message.delivery_count >= self.max_delivery_count


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


class DLQConsumer(Generic[T]):
    """A loop over dead letters: each is handled once, or kept for another try in an hour.

    What fails here is never dead-lettered again.
    """

    def __init__(
        self,
        *,
        mailbox: Mailbox[DeadLetter[T], None],
        handler: Callable[[DeadLetter[T]], object],
        visibility_timeout: float = 300,
        config: WorkerConfig | None = None,
    ) -> None:
        self._mailbox = mailbox
        self._visibility_timeout = visibility_timeout
        hourly = Backoff(base=ONE_HOUR, cap=ONE_HOUR, jitter=False)
        config = replace(config or WorkerConfig(), backoff=hourly, failure_log="DLQ handler failed")
        self._worker: Worker[DeadLetter[T], Any] = Worker(mailbox, handler, config=config)

    @property
    def running(self) -> bool:
        """Whether `run` is in progress."""
        return self._worker.running

    @property
    def heartbeat(self) -> Heartbeat:
        """The loop's pulse."""
        return self._worker.heartbeat

    def run(
        self,
        *,
        max_iterations: int | None = None,
        visibility_timeout: float | None = None,
        wait_time_seconds: float = 20,
    ) -> None:
        """Handle dead letters until `shutdown`."""
        (body_type,) = arguments_of(self, DLQConsumer)
        bind(self._mailbox, DeadLetter[body_type], None)  # type: ignore[valid-type]
        self._worker.run(
            max_iterations=max_iterations,
            visibility_timeout=(
                self._visibility_timeout if visibility_timeout is None else visibility_timeout
            ),
            wait_time_seconds=wait_time_seconds,
        )

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """End the loop for good; True if it has ended within ``timeout``."""
        return self._worker.shutdown(timeout=timeout)
