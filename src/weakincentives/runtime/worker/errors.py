"""Errors that a handler raises, or that are raised in it, to control its job."""

from contextvars import ContextVar
from typing import TYPE_CHECKING

from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.limits import TEN_YEARS, in_digits, is_number

if TYPE_CHECKING:
    from .job import AsyncJob, Job

__all__ = [
    "CURRENT_JOB",
    "JobCancelledError",
    "NoCurrentJobError",
    "RetryAfter",
    "TimeLimitExceededError",
]

CURRENT_JOB: ContextVar["Job | AsyncJob | None"] = ContextVar("current_job", default=None)
"""The job that the current handler handles."""


class JobCancelledError(WinkError):
    """This job was cancelled: stop, its result would be dropped."""


class NoCurrentJobError(WinkError, RuntimeError):
    """No job is being handled here."""


class TimeLimitExceededError(WinkError, TimeoutError):
    """The handler ran for longer than the worker's time_limit."""


class RetryAfter(WinkError):
    """Raised by a handler that wants its message again later; this is not a failure.

    In a job, ``seconds`` must be within the longest delay of its mailbox.
    """

    def __init__(self, seconds: float) -> None:
        job = CURRENT_JOB.get()
        longest = TEN_YEARS if job is None else job._executor.longest_delay
        if not is_number(seconds) or not 0 <= seconds <= longest:
            where = "" if job is None else f" ({job.mailbox.name} cannot delay for longer)"
            raise InvalidParameterError(
                f"seconds must be a number of seconds from 0 to {in_digits(longest)}{where}, "
                f"not {seconds!r}"
            )
        super().__init__(f"to be delivered again after {seconds:g} seconds")
        self.seconds = seconds

    def __reduce__(self) -> tuple[type["RetryAfter"], tuple[float]]:
        return type(self), (self.seconds,)
