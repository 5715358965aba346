"""The messages of an evaluation: requests to the workers, and their results."""

from dataclasses import field
from datetime import UTC, datetime
from typing import Any, Generic
from uuid import NAMESPACE_OID, UUID, uuid4, uuid5

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.ids import derived_id

from .dataset import Sample
from .score import Score

__all__ = ["EvalRequest", "EvalResult", "message_id_for", "request_for", "request_id_for"]

InputT = TypeVar("InputT", default=Any)
ExpectedT = TypeVar("ExpectedT", default=Any)


def _now() -> datetime:
    return datetime.now(UTC)


@FrozenDataclass()
class EvalRequest(Generic[InputT, ExpectedT]):
    """A request to evaluate one sample of a run."""

    sample: Sample[InputT, ExpectedT]
    run_id: str = ""
    request_id: UUID = field(default_factory=uuid4)
    created_at: datetime = field(default_factory=_now)


@FrozenDataclass()
class EvalResult:
    """The result of one sample: a score, or an error with a score of 0."""

    sample_id: str
    """Empty if the request could not be read; then ``request_id`` identifies the sample."""
    score: Score
    run_id: str = ""
    latency_ms: float | None = None
    """How long the loop took to produce the output; None if there is no output."""
    error: str | None = None
    error_type: str | None = None
    """The name of the error's type."""
    tags: tuple[str, ...] = ()
    output: str | None = None
    """The output as text, cut to 2,000 characters."""
    request_id: UUID | None = None
    session_id: UUID | None = None
    completed_at: datetime = field(default_factory=_now)

    @property
    def passed(self) -> bool:
        """Whether there was no error and the evaluator passed the output."""
        return self.error is None and self.score.passed


def message_id_for(run_id: str, sample_id: str) -> str:
    """Return the message id of a sample; submitting it again sends no second message.

    The loop derives the id of the result from it, so a result is sent once as well.
    """
    return derived_id("eval", run_id, sample_id)


def request_id_for(run_id: str, sample_id: str) -> UUID:
    """Return the request id of a sample, which identifies it even if its request is unreadable."""
    return uuid5(NAMESPACE_OID, message_id_for(run_id, sample_id))


def request_for(run_id: str, sample: Sample[InputT, ExpectedT]) -> EvalRequest[InputT, ExpectedT]:
    """Return the request that evaluates a sample."""
    return EvalRequest(sample, run_id, request_id_for(run_id, sample.id))
