"""What a loop and its user agree on."""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.leases.extender import TWELVE_HOURS, LeaseExtenderConfig
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.limits import check_positive

from .backoff import Backoff
from .decide import Thresholds

if TYPE_CHECKING:
    from weakincentives.runtime.dead_letters.policy import DLQPolicy

__all__ = ["SOON", "Failure", "Settings", "WorkerConfig", "within"]


# Compared by identity: a loop with another default must know whether this one was asked for.
SOON = Backoff()
SHORTEST_ASKED = 1.0
"""The shortest interval between extensions that a sender may ask for."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """How a loop works."""

    concurrency: int = 1
    """How many jobs run at once: of a plain handler each in a thread, at most 1,000; of an async
    one each as a task of one event loop, at most 10,000."""
    batch: int = 1
    """How many messages a thread takes at a time. More is faster for short jobs; a finished one
    is then acknowledged with the others of its batch. An event loop fills all its free places."""
    lease_extender: LeaseExtenderConfig = field(default_factory=LeaseExtenderConfig)
    backoff: Backoff = SOON
    """The wait before a failed job is tried again. In an EvalLoop the default stands for its own,
    which begins at a minute."""
    error_detail: Literal["type", "text"] = "type"
    """What senders are told of an error: its type, or its text as well."""
    dispatcher: Dispatcher | None = None
    """Who is told of events; by default the mailbox's own."""
    time_limit: float | None = None
    """How many seconds a handler may take; after that its job has failed with
    `TimeLimitExceededError`. None means no limit."""
    max_put_off: float = 86_400.0
    """How many seconds after its sending a message can still be put off by `RetryAfter`; later
    that is a failure."""
    failure_log: str = "Message handling failed"
    """How the log line of a failure begins."""
    failure_level: int = logging.WARNING
    """How serious a failure is that is retried; the last one is always an error."""

    def __post_init__(self) -> None:
        for name, value, most in (
            ("concurrency", self.concurrency, 10_000),
            ("batch", self.batch, 1000),
        ):
            if type(value) is not int or not 1 <= value <= most:
                raise InvalidParameterError(
                    f"{name} must be a whole number from 1 to {most}, not {value!r}"
                )
        if self.time_limit is not None:
            check_positive("time_limit", self.time_limit)
        check_positive("max_put_off", self.max_put_off)
        if self.error_detail not in ("type", "text"):
            raise InvalidParameterError(
                f"error_detail must be 'type' or 'text', not {self.error_detail!r}"
            )


@dataclass(frozen=True, slots=True)
class Failure:
    """A failure as the sender is told of it."""

    message_id: str
    text: str
    """The error's type and a reference; its own text only if the loop's config says so."""
    reference: str
    """Stands in the log beside the whole error."""
    error: BaseException
    body: Any = None
    """What was sent; None if it could not be read."""
    request_id: Any = None
    dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a worker was given beside its mailbox and its handler."""

    config: WorkerConfig
    error_reply: Callable[[Failure], Any] | None
    responses: Any
    dlq: "DLQPolicy[Any, Any] | None"
    dispatcher: Dispatcher | None

    def thresholds(self) -> Thresholds | None:
        """Return the limits of the dead-letter policy, None without one."""
        dlq = self.dlq
        if dlq is None:
            return None
        excludes = bool(dlq.exclude_errors)
        return Thresholds(dlq.max_delivery_count, dlq.absolute_max_delivery_count, excludes)


def within(asked: LeaseExtenderConfig, own: LeaseExtenderConfig) -> LeaseExtenderConfig:
    """Return how a request's lease is kept: as its sender asks, as far as the loop's own allows.

    What the sender left at its default is the loop's own.
    """
    default = LeaseExtenderConfig()
    longest = own.max_lease_seconds
    extension, kept = asked.extension, asked.max_lease_seconds
    if kept is None or kept == default.max_lease_seconds:
        kept = longest
    return LeaseExtenderConfig(
        interval=max(asked.interval, min(own.interval, SHORTEST_ASKED)),
        extension=(
            own.extension
            if extension == default.extension
            else min(extension, TWELVE_HOURS if longest is None else longest)
        ),
        enabled=asked.enabled,
        max_lease_seconds=kept if longest is None or kept is None else min(kept, longest),
    )
