"""The settings of a loop, and what it reports about failures."""

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

__all__ = ["DEFAULT_BACKOFF", "Failure", "Settings", "WorkerConfig", "within"]


# Compared by identity, so that a loop with another default knows whether the user chose this.
DEFAULT_BACKOFF = Backoff()
SHORTEST_ASKED = 1.0
"""The shortest interval between extensions that a sender may ask for."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The settings of a loop."""

    concurrency: int = 1
    """How many jobs run at once. Jobs of a plain handler are threads, at most 1,000; jobs of an
    async handler are tasks of one event loop, at most 10,000."""
    batch: int = 1
    """How many messages a thread receives at a time. More is faster for short jobs, but a finished
    job is acknowledged only with the rest of its batch. An event loop fills all its free places
    instead."""
    lease_extender: LeaseExtenderConfig = field(default_factory=LeaseExtenderConfig)
    backoff: Backoff = DEFAULT_BACKOFF
    """The wait before a failed job is retried. An EvalLoop has its own default, which begins at a
    minute."""
    error_detail: Literal["type", "text"] = "type"
    """What an error reply shows: the error's type, or its text as well."""
    dispatcher: Dispatcher | None = None
    """Gets the events of the loop; by default the mailbox's dispatcher."""
    time_limit: float | None = None
    """How many seconds a handler may take; then its job fails with `TimeLimitExceededError`. None
    means no limit."""
    max_put_off: float = 86_400.0
    """For how many seconds after it was sent a message can be put off by `RetryAfter`; after that,
    `RetryAfter` counts as a failure."""
    failure_log: str = "Message handling failed"
    """The beginning of the log line of a failure."""
    failure_level: int = logging.WARNING
    """The log level of a failure that is retried; the last failure is always logged as an error."""

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
    """A failure, as ``error_reply`` gets it."""

    message_id: str
    text: str
    """The error's type and a reference; its own text only if the loop's config says so."""
    reference: str
    """The log shows it beside the whole error."""
    error: BaseException
    body: Any = None
    """The body of the message; None if it could not be read."""
    request_id: Any = None
    dead_lettered: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that a worker was given besides its mailbox and its handler."""

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
    """Return how to extend a request's lease: as its sender asks, within the loop's limits.

    Where the sender left the default, the loop's own setting is used.
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
