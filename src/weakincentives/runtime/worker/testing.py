"""Jobs without a worker, for tests of handlers."""

from collections.abc import Mapping
from contextvars import Token
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypedDict, cast

from typing_extensions import Unpack

from weakincentives.ids import new_id
from weakincentives.runtime.budget import Deadline
from weakincentives.runtime.leases.extender import Lease, LeaseExtenderConfig
from weakincentives.runtime.mailbox import InMemoryMailbox, Mailbox, ReplyAlreadySentError
from weakincentives.runtime.mailbox.limits import Limits

from .attempt import Attempt
from .errors import CURRENT_JOB, JobCancelledError
from .job import AsyncJob, Cancelled, Job, JobBase, because
from .settle import OutcomeExecutor

__all__ = ["FakeAsyncJob", "FakeJob", "make_async_job", "make_job"]


@dataclass
class FakeDelivery:
    """What a job without a worker knows of its message."""

    body: Any
    id: str
    delivery_count: int
    attempts: int
    attributes: Mapping[str, str]
    enqueued_at: datetime


@dataclass
class FakeExecutor:
    """Keeps what a job replies, in place of a worker that would send it."""

    mailbox: Any
    replies: list[Any] = field(default_factory=list)
    parts: list[Any] = field(default_factory=list)

    def seconds_left(self, attempt: Attempt) -> None:
        """Return None: a test gives the job its deadline."""

    @property
    def longest_delay(self) -> float:
        """The longest delay of the mailbox, which `RetryAfter` must not exceed."""
        limits: Limits = self.mailbox.limits
        return limits.max_visibility

    def parts_of(self, attempt: Attempt) -> "FakeParts":
        """Return where the parts of a job are kept."""
        return FakeParts(self.parts)

    async def answer_now(self, attempt: Attempt, value: Any) -> bool:
        """Keep a reply."""
        if self.replies:
            raise ReplyAlreadySentError
        if attempt.cancelled is not None:
            raise JobCancelledError(because(attempt.message.id, attempt.cancelled))
        self.replies.append(value)
        return True


@dataclass
class FakeParts:
    """Keeps what a job emits."""

    emitted: list[Any]

    def emit(self, value: Any) -> bool:
        """Keep a part."""
        self.emitted.append(value)
        return True

    async def emit_async(self, value: Any) -> bool:
        """Keep a part."""
        return self.emit(value)


class FakeJobBase(JobBase):
    """What a test can do with a job that a worker cannot."""

    _token: Token[Job | AsyncJob | None] | None = None

    @property
    def body(self) -> Any:
        """What the job was made with."""
        return self._attempt.message.body

    @property
    def replies(self) -> list[Any]:
        """What the handler has replied: nothing, or one value."""
        return cast(FakeExecutor, self._executor).replies

    @property
    def parts(self) -> list[Any]:
        """What the handler has emitted."""
        return cast(FakeExecutor, self._executor).parts

    def cancel(self, reason: Cancelled) -> None:
        """Tell the handler to stop."""
        self._attempt.cancelled = reason

    def __enter__(self) -> Any:
        """Make current_job() or current_async_job() return this job inside the block."""
        self._token = CURRENT_JOB.set(cast(Job | AsyncJob, self))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            CURRENT_JOB.reset(self._token)


class FakeJob(FakeJobBase, Job):
    """A `Job` without a worker."""


class FakeAsyncJob(FakeJobBase, AsyncJob):
    """An `AsyncJob` without a worker."""


class JobFacts(TypedDict, total=False):
    """What a test can set for a job; the defaults are those of a first delivery."""

    id: str
    mailbox: Mailbox[Any, Any]
    delivery_count: int
    attempts: int
    attributes: Mapping[str, str]
    enqueued_at: datetime
    deadline: Deadline
    resources: Any
    cancelled: Cancelled


def make_job(body: Any = None, **facts: Unpack[JobFacts]) -> FakeJob:
    """Return a job to call a plain handler with; what it replies is in ``job.replies``."""
    job = FakeJob(*_parts(body, facts))
    job._deadline = facts.get("deadline")
    return job


def make_async_job(body: Any = None, **facts: Unpack[JobFacts]) -> FakeAsyncJob:
    """Return a job to call an async handler with; what it replies is in ``job.replies``."""
    job = FakeAsyncJob(*_parts(body, facts))
    job._deadline = facts.get("deadline")
    return job


def _parts(body: Any, facts: JobFacts) -> tuple[Attempt, OutcomeExecutor, Any]:
    deliveries = facts.get("delivery_count", 1)
    delivery = FakeDelivery(
        body,
        facts.get("id") or new_id(),
        deliveries,
        facts.get("attempts", deliveries),
        facts.get("attributes", {}),
        facts.get("enqueued_at") or datetime.now(UTC),
    )
    attempt = Attempt(delivery, Lease(None, delivery, LeaseExtenderConfig(enabled=False)))
    attempt.cancelled = facts.get("cancelled")
    executor = FakeExecutor(facts.get("mailbox") or InMemoryMailbox("jobs"))
    return attempt, cast(OutcomeExecutor, executor), facts.get("resources")
