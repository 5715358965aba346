"""EvalLoop: samples from a mailbox, through a MainLoop and an evaluator, to results."""

import logging
import time
from collections.abc import Callable
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.ids import new_id
from weakincentives.runtime import (
    DLQPolicy,
    Failure,
    Heartbeat,
    Mailbox,
    MainLoop,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.evidence import described
from weakincentives.runtime.type_arguments import arguments_of, bind
from weakincentives.serde import Codec, EncodeError

from .messages import EvalRequest, EvalResult
from .score import Score, judged

__all__ = ["EvalLoop"]

logger = logging.getLogger(__name__)

InputT = TypeVar("InputT", default=Any)
OutputT = TypeVar("OutputT", default=Any)
ExpectedT = TypeVar("ExpectedT", default=Any)

MAX_TEXT = 2_000


class EvalLoop(Generic[InputT, OutputT, ExpectedT]):
    """Serves requests to evaluate: output from the loop, score from the evaluator, to the sender.

    What the loop raises is settled as `Worker` does: retried and dead-lettered under a ``dlq``,
    an error result without one. What the evaluator raises is an error result at once.
    """

    def __init__(
        self,
        *,
        loop: MainLoop[InputT, OutputT],
        evaluator: Callable[..., Score | bool],
        requests: Mailbox[EvalRequest[InputT, ExpectedT], EvalResult],
        dlq: DLQPolicy[EvalRequest[InputT, ExpectedT], EvalResult] | None = None,
        config: WorkerConfig | None = None,
    ) -> None:
        self.requests = requests
        self._loop = loop
        self._judge = judged(evaluator)
        self._detail = (config if config is not None else WorkerConfig()).error_detail
        self._codec = Codec()
        self._worker: Worker[EvalRequest[InputT, ExpectedT], EvalResult] = Worker(
            requests, self._handle, error_reply=_error_result, dlq=dlq, config=config
        )

    @property
    def sample_types(self) -> tuple[Any, Any]:
        """The types of a sample's input and of what is expected; Any for what nobody said."""
        told = arguments_of(self, EvalLoop)
        of_loop = arguments_of(self._loop, MainLoop)
        input_type = of_loop[0] if told[0] is Any else told[0]
        output_type = of_loop[1] if told[1] is Any else told[1]
        return input_type, (output_type if told[2] is Any else told[2])

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
        visibility_timeout: float = 300,
        wait_time_seconds: float = 20,
    ) -> None:
        """Serve requests until `shutdown`, or for ``max_iterations`` receives, empty or not."""
        input_type, expected_type = self.sample_types
        bind(self.requests, EvalRequest[input_type, expected_type], EvalResult)  # type: ignore[valid-type]
        self._worker.run(
            max_iterations=max_iterations,
            visibility_timeout=visibility_timeout,
            wait_time_seconds=wait_time_seconds,
        )

    def shutdown(self, *, timeout: float = 30.0) -> bool:
        """End the loop for good; True if it has ended within ``timeout``."""
        return self._worker.shutdown(timeout=timeout)

    def _handle(self, request: EvalRequest[InputT, ExpectedT]) -> EvalResult:
        sample = request.sample
        started = time.perf_counter()
        response, session = self._loop.execute(sample.input)
        latency = (time.perf_counter() - started) * 1000
        error = kind = None
        try:
            score = self._judge(response.output, sample.expected, session)
        except Exception as raised:  # noqa: BLE001 - the sample must not be lost with its score
            score, kind = Score(0.0, False), type(raised).__name__
            error = self._told(raised, request)
        return EvalResult(
            sample_id=sample.id,
            score=Score(score.value, score.passed, _clean(score.reason)),
            run_id=request.run_id,
            latency_ms=latency,
            error=error,
            error_type=kind,
            tags=sample.tags,
            output=self._shown(response.output),
            request_id=request.request_id,
            session_id=session.session_id,
        )

    def _told(self, error: Exception, request: EvalRequest[Any, Any]) -> str:
        """Write an error of the evaluator to the log, and return what the sender is told."""
        reference = new_id()[:10]
        logger.error(
            "Evaluator failed: sample_id=%s run_id=%s ref=%s",
            request.sample.id,
            request.run_id,
            reference,
            exc_info=error,
        )
        detail = f": {described(error)}" if self._detail == "text" else ""
        return f"Evaluator failed: {type(error).__name__}{detail} (ref {reference})"

    def _shown(self, output: Any) -> str | None:
        if output is None or isinstance(output, str):
            return _clean(output)
        try:
            return _clean(self._codec.encode(output).decode())
        except EncodeError:
            return _clean(repr(output))


def _error_result(failure: Failure) -> EvalResult:
    request = failure.body
    known = isinstance(request, EvalRequest)
    return EvalResult(
        sample_id=request.sample.id if known else "",
        score=Score(0.0, False),
        run_id=request.run_id if known else "",
        error=failure.text,
        error_type=type(failure.error).__name__,
        tags=request.sample.tags if known else (),
        request_id=failure.request_id,
    )


def _clean(text: str | None) -> str | None:
    """Return a text that any mailbox takes: bounded, and without lone surrogates."""
    if text is None:
        return None
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8")
