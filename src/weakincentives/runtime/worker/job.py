"""The job in a handler's hands: what is known of the message, and what can be done for it."""

import asyncio
import time
from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from weakincentives.runtime.budget import Deadline
from weakincentives.runtime.leases.extender import Lease
from weakincentives.runtime.mailbox import Mailbox
from weakincentives.runtime.mailbox.seam.driver import run

from .errors import CURRENT_JOB, JobCancelledError, NoCurrentJobError

if TYPE_CHECKING:
    from .attempt import Attempt
    from .settle import OutcomeExecutor

__all__ = ["AsyncJob", "Cancelled", "Job", "because", "current_async_job", "current_job"]

Cancelled: TypeAlias = Literal["caller", "time_limit", "shutdown", "lease"]
"""Why a job should stop: its result would be dropped."""

CANCELLED_BECAUSE: dict[Cancelled, str] = {
    "caller": "its caller has cancelled it",
    "time_limit": "it has run for longer than its worker's time_limit",
    "shutdown": "the deadline of its worker's shutdown has passed",
    "lease": "its lease was lost, and another worker may be handling it now",
}


class JobBase:
    """What plain and async jobs have in common."""

    # Not made when the job begins: most jobs never ask.
    _deadline: Deadline | None = None

    def __init__(
        self, attempt: "Attempt", executor: "OutcomeExecutor", resources: Any = None
    ) -> None:
        self._attempt = attempt
        self._executor = executor
        self._resources = resources

    @property
    def id(self) -> str:
        """The message's own id, the same in every delivery."""
        id: str = self._attempt.message.id
        return id

    @property
    def mailbox(self) -> Mailbox[Any, Any]:
        """The mailbox that the message was received from."""
        mailbox: Mailbox[Any, Any] = self._executor.mailbox
        return mailbox

    @property
    def delivery_count(self) -> int:
        """How many times the message has been received; 1 the first time."""
        count: int = self._attempt.message.delivery_count
        return count

    @property
    def attempts(self) -> int:
        """The number of deliveries minus the number of times the message was put off."""
        count: int = self._attempt.message.attempts
        return count

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the sender attached."""
        attributes: Mapping[str, str] = self._attempt.message.attributes
        return attributes

    @property
    def enqueued_at(self) -> datetime:
        """When the message was sent."""
        at: datetime = self._attempt.message.enqueued_at
        return at

    @property
    def deadline(self) -> Deadline | None:
        """When the reply expires or the time limit is reached, whichever is earlier, or None."""
        if self._deadline is None:
            seconds = self._executor.seconds_left(self._attempt)
            if seconds is not None:
                self._deadline = Deadline.after(seconds)
        return self._deadline

    @property
    def lease(self) -> Lease:
        """The lease on the message."""
        return self._attempt.lease

    @property
    def resources(self) -> Any:
        """What the worker's ``resources`` yielded for this run, or None."""
        return self._resources

    @property
    def cancelled(self) -> Cancelled | None:
        """Why the job should stop, or None."""
        return self._attempt.why_cancelled(time.monotonic())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}, delivery {self.delivery_count}>"


class Job(JobBase):
    """One delivery of a message, as its plain handler sees it."""

    def raise_if_cancelled(self) -> None:
        """Raise `JobCancelledError` if the job was cancelled, so that useless work stops."""
        reason = self.cancelled
        if reason is not None:
            raise JobCancelledError(because(self.id, reason))

    def reply(self, value: Any) -> bool:
        """Answer the sender now, so that what the handler returns is not sent.

        False if the message asks for no answer. A caller who waits gets one reply, and sending
        it also acknowledges the message: what the handler does after that is not repeated if it
        fails.
        """
        return run(partial(self._executor.answer_now, self._attempt, value))

    def emit(self, value: Any) -> bool:
        """Send a part of the reply to the caller, who reads it with ``reply.parts()``.

        False if no caller waits, the job was cancelled, or a part could not be sent; this one is
        dropped then.
        """
        parts = self._executor.parts_of(self._attempt)
        return parts is not None and parts.emit(value)


class AsyncJob(JobBase):
    """One delivery of a message, as its async handler sees it."""

    def raise_if_cancelled(self) -> None:
        """Raise `asyncio.CancelledError` if the job was cancelled, so that useless work stops."""
        reason = self.cancelled
        if reason is not None:
            raise asyncio.CancelledError(because(self.id, reason))

    async def reply(self, value: Any) -> bool:
        """Answer the sender now, so that what the handler returns is not sent.

        False if the message asks for no answer. A caller who waits gets one reply, and sending
        it also acknowledges the message: what the handler does after that is not repeated if it
        fails.
        """
        return await self._executor.answer_now(self._attempt, value)

    async def emit(self, value: Any) -> bool:
        """Send a part of the reply to the caller, who reads it with ``reply.parts()``.

        False if no caller waits, the job was cancelled, or a part could not be sent; this one is
        dropped then. The first part
        goes at once, and what is emitted meanwhile with the next step.
        """
        parts = self._executor.parts_of(self._attempt)
        return parts is not None and await parts.emit_async(value)


def because(id: str, reason: Cancelled) -> str:
    """Return a sentence about a job that was cancelled."""
    return f"job {id} was cancelled: {CANCELLED_BECAUSE[reason]}"


def current_job() -> Job:
    """Return the job whose plain handler is running; `NoCurrentJobError` outside of one."""
    job = CURRENT_JOB.get()
    if isinstance(job, Job):
        return job
    raise NoCurrentJobError(
        "current_job() works only in and below a worker's handler"
        if job is None
        else "this handler is async: call current_async_job()"
    )


def current_async_job() -> AsyncJob:
    """Return the job whose async handler is running; `NoCurrentJobError` outside of one."""
    job = CURRENT_JOB.get()
    if isinstance(job, AsyncJob):
        return job
    raise NoCurrentJobError(
        "current_async_job() works only in and below a worker's async handler"
        if job is None
        else "this handler is not async: call current_job()"
    )
