"""EvalLoop receives samples, runs each through a MainLoop, and scores the output."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Generic, TypeAlias

from typing_extensions import TypeVar

from weakincentives.error_text import described, type_name
from weakincentives.ids import new_id
from weakincentives.logs import get_logger
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    Failure,
    Mailbox,
    MainLoop,
    Session,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.worker.built_on_worker import BuiltOnWorker
from weakincentives.runtime.worker.config import DEFAULT_BACKOFF
from weakincentives.runtime.worker.type_arguments import BoundByAlias, arguments_of, bind
from weakincentives.runtime.worker.validation import is_async
from weakincentives.serde import Codec, EncodeError

from .messages import EvalRequest, EvalResult
from .score import Score, as_score, as_session_evaluator

__all__ = ["EvalLoop"]

logger = get_logger(__name__)

InputT = TypeVar("InputT", default=Any)
OutputT = TypeVar("OutputT", default=Any)
ExpectedT = TypeVar("ExpectedT", default=Any)

MAX_TEXT = 2_000

Judged: TypeAlias = Score | Exception
"""What the evaluator returned or raised."""


class EvalLoop(BoundByAlias, BuiltOnWorker, Generic[InputT, OutputT, ExpectedT]):
    """Evaluates samples: runs the loop on each one, scores the output and sends the result.

    If the loop raises, `Worker` handles that as usual: with ``dlq`` the sample is retried and
    finally dead-lettered, without it the sender gets an error result. If the evaluator raises,
    the sender gets an error result at once. If the loop's adapter or the evaluator is async, all
    samples are tasks of one event loop; what is not async then runs in threads.
    """

    def __init__(
        self,
        *,
        loop: MainLoop[InputT, OutputT],
        evaluator: Callable[..., Score | bool | Awaitable[Score | bool]],
        requests: Mailbox[EvalRequest[InputT, ExpectedT], EvalResult],
        dlq: DLQPolicy[EvalRequest[InputT, ExpectedT], EvalResult] | None = None,
        config: WorkerConfig | None = None,
    ) -> None:
        self.requests = requests
        self.dlq = dlq
        self._loop = loop
        self._judge = as_session_evaluator(evaluator)
        self._judges_async = is_async(evaluator)
        config = config if config is not None else WorkerConfig()
        if config.backoff is DEFAULT_BACKOFF:
            # Many workers ask the same provider; if it is down, they must wait longer.
            config = replace(config, backoff=Backoff(base=60.0))
        self._detail = config.error_detail
        self._codec = Codec()
        self._worker: Worker[EvalRequest[InputT, ExpectedT], EvalResult] = Worker(
            requests,
            self._handle_async if loop.is_async or self._judges_async else self._handle,
            error_reply=_error_result,
            dlq=dlq,
            config=config,
        )

    @property
    def sample_types(self) -> tuple[Any, Any]:
        """The types of a sample's input and expected output; Any where none is declared."""
        declared = arguments_of(self, EvalLoop)
        of_loop = arguments_of(self._loop, MainLoop)
        input_type = of_loop[0] if declared[0] is Any else declared[0]
        output_type = of_loop[1] if declared[1] is Any else declared[1]
        return input_type, (output_type if declared[2] is Any else declared[2])

    def _bind(self) -> None:
        input_type, expected_type = self.sample_types
        bind(self.requests, EvalRequest[input_type, expected_type], EvalResult)  # type: ignore[valid-type]

    def _handle(self, request: EvalRequest[InputT, ExpectedT]) -> EvalResult:
        sample, started = request.sample, time.perf_counter()
        response, session = self._loop.execute(sample.input)
        latency = (time.perf_counter() - started) * 1000
        try:
            judged: Judged = self._judge(response.output, sample.expected, session)
        except Exception as error:  # noqa: BLE001 - any error becomes the sample's result
            judged = error
        return self._result(request, response.output, session, latency, judged)

    async def _handle_async(self, request: EvalRequest[InputT, ExpectedT]) -> EvalResult:
        sample, started = request.sample, time.perf_counter()
        response, session = await self._loop.execute_async(sample.input)
        latency = (time.perf_counter() - started) * 1000
        try:
            judging = (response.output, sample.expected, session)
            judged: Judged = (
                as_score(await self._judge(*judging))
                if self._judges_async
                else await asyncio.to_thread(self._judge, *judging)
            )
        except Exception as error:  # noqa: BLE001 - any error becomes the sample's result
            judged = error
        return self._result(request, response.output, session, latency, judged)

    def _result(
        self,
        request: EvalRequest[InputT, ExpectedT],
        output: Any,
        session: Session,
        latency: float,
        judged: Judged,
    ) -> EvalResult:
        """Return the result of a sample, given its score or what the evaluator has raised."""
        sample, error, kind = request.sample, None, None
        if isinstance(judged, Score):
            score = Score(judged.value, judged.passed, _clean(judged.reason))
        else:
            score, kind = Score(0.0, False), type_name(judged)
            error = self._report_evaluator_error(judged, request)
        return EvalResult(
            sample_id=sample.id,
            score=score,
            run_id=request.run_id,
            latency_ms=latency,
            error=error,
            error_type=kind,
            tags=sample.tags,
            output=self._output_text(output),
            request_id=request.request_id,
            session_id=session.session_id,
        )

    def _report_evaluator_error(self, error: Exception, request: EvalRequest[Any, Any]) -> str:
        """Log an error of the evaluator, and return the error text for the sender."""
        reference = new_id()[:10]
        logger.error(
            "Evaluator failed: sample_id=%s run_id=%s ref=%s",
            request.sample.id,
            request.run_id,
            reference,
            exc_info=error,
        )
        detail = f": {described(error)}" if self._detail == "text" else ""
        return f"Evaluator failed: {type_name(error)}{detail} (ref {reference})"

    def _output_text(self, output: Any) -> str | None:
        if output is None or isinstance(output, str):
            return _clean(output)
        try:
            return _clean(self._codec.encode(output).decode())
        except EncodeError:
            pass
        try:
            return _clean(repr(output))
        except Exception:  # noqa: BLE001 - a __repr__ that raises must not lose the score
            return _clean(f"<{type(output).__name__}>")


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
    """Return text that every mailbox accepts: bounded, and without lone surrogates."""
    if text is None:
        return None
    cut = text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"
    return cut.encode("utf-8", "replace").decode("utf-8")
