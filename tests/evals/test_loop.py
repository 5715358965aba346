"""EvalLoop: a sample becomes a result, whatever happens on the way."""

import logging
from typing import Any

import pytest

from tests.evals.loops import add, bodies, eval_loop, main_loop, sums
from weakincentives.evals import (
    EvalLoop,
    EvalRequest,
    EvalResult,
    Sample,
    Score,
    collect_results,
    exact_match,
    submit_dataset,
)
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    FakeMailbox,
    InMemoryMailbox,
    Session,
    WorkerConfig,
)


def boxes() -> tuple[InMemoryMailbox[Any, Any], InMemoryMailbox[Any, Any]]:
    requests: InMemoryMailbox[Any, Any] = InMemoryMailbox("requests", serialize=True)
    results: InMemoryMailbox[Any, Any] = InMemoryMailbox(
        "results", body_type=EvalResult, serialize=True
    )
    return requests, results


def evaluated(count: int = 1, **options: Any) -> list[EvalResult]:
    requests, results = boxes()
    submit_dataset(sums(count), requests, reply_to=results, run_id="run")
    eval_loop(requests, **options).run(max_iterations=count, wait_time_seconds=0)
    assert requests.approximate_count() == 0
    return bodies(results)


def test_a_sample_becomes_a_result() -> None:
    (result,) = evaluated()
    assert (result.sample_id, result.run_id, result.tags) == ("sum-0", "run", ("even",))
    assert result.passed
    assert result.score == Score(1.0, True)
    assert result.output == "0"
    assert result.latency_ms is not None
    assert result.latency_ms >= 0
    assert result.error is None


def test_the_evaluator_sees_the_session() -> None:
    def thrifty(output: str, expected: str, session: Session) -> Score:
        return Score(0.25, False, f"{type(session).__name__} of {output}")

    (result,) = evaluated(evaluator=thrifty)
    assert result.score == Score(0.25, False, "Session of 0")


def test_an_evaluators_exception_is_an_error_result_with_the_text_in_the_log_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(output: str, expected: str) -> Score:
        raise LookupError("the secret sauce")

    with caplog.at_level(logging.ERROR):
        (result,) = evaluated(evaluator=broken)
    assert result.error_type == "LookupError"
    assert result.error is not None
    assert "secret sauce" not in result.error
    assert result.output == "0"
    assert not result.passed
    reference = result.error.partition("(ref ")[2].rstrip(")")
    assert reference in caplog.text
    assert "secret sauce" in caplog.text


def test_a_score_of_the_wrong_types_is_an_error_result(caplog: pytest.LogCaptureFixture) -> None:
    wrong: Any = 1
    (result,) = evaluated(evaluator=lambda output, expected: Score(1.0, wrong))
    assert (result.error_type, result.passed) == ("ValueError", False)
    assert "passed must be True or False, not 1" in caplog.text


def test_error_detail_text_tells_the_text() -> None:
    def broken(output: str, expected: str) -> Score:
        raise LookupError("no such answer")

    (result,) = evaluated(evaluator=broken, config=WorkerConfig(error_detail="text"))
    assert result.error is not None
    assert "LookupError: no such answer" in result.error


def test_an_error_of_the_loop_is_an_error_result() -> None:
    (result,) = evaluated(answer=lambda text: 1 / 0)
    assert (result.sample_id, result.error_type, result.tags) == (
        "sum-0",
        "ZeroDivisionError",
        ("even",),
    )
    assert result.latency_ms is None


@pytest.mark.parametrize(
    "output", ["x" * 10_000, "\ud800", {"deep": [1]}, object(), float("nan"), None]
)
def test_any_output_makes_a_result(output: Any) -> None:
    (result,) = evaluated(answer=lambda text: output)
    assert result.error is None
    assert result.output is None or len(result.output) <= 2000


def test_an_output_that_cannot_be_shown_is_scored_all_the_same() -> None:
    class Unshown:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    (result,) = evaluated(answer=lambda text: Unshown(), evaluator=lambda *_: True)
    assert (result.passed, result.error, result.output) == (True, None, "<Unshown>")


def test_what_fails_is_retried_and_dead_lettered_under_a_policy() -> None:
    requests: FakeMailbox[Any, Any] = FakeMailbox("requests")
    results, dead = InMemoryMailbox[Any]("results"), InMemoryMailbox[Any]("dead")
    submit_dataset(sums(1), requests, reply_to=results, run_id="run")
    loop = eval_loop(
        requests,
        answer=lambda text: 1 / 0,
        dlq=DLQPolicy(mailbox=dead, max_delivery_count=2),
        config=WorkerConfig(backoff=Backoff(base=60, jitter=False)),
    )
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert bodies(results) == []
    requests.advance(60)
    loop.run(max_iterations=1, wait_time_seconds=0)
    (letter,) = bodies(dead)
    assert isinstance(letter.body, EvalRequest)
    assert (letter.delivery_count, letter.request_id) == (2, letter.body.request_id)
    (result,) = bodies(results)
    assert result.sample_id == "sum-0"
    assert result.error.startswith("Dead-lettered after 2 attempts: ZeroDivisionError")


def test_a_sample_that_kills_its_workers_is_in_the_report() -> None:
    """Nobody reads it again, and still the report knows which it was."""
    requests: FakeMailbox[Any, Any] = FakeMailbox("requests")
    results, dead = InMemoryMailbox[Any]("results"), InMemoryMailbox[Any]("dead")
    submit_dataset(sums(1), requests, reply_to=results, run_id="run")
    for _ in range(2):
        requests.receive()
        requests.advance(31)
    eval_loop(requests, dlq=DLQPolicy(mailbox=dead, max_delivery_count=2)).run(
        max_iterations=1, wait_time_seconds=0
    )
    report = collect_results(results, dataset=sums(1), run_id="run", timeout_seconds=5)
    (result,) = report.results
    assert (result.sample_id, result.error_type) == ("sum-0", "RepeatedCrashError")
    assert result.tags == ("even",)
    assert report.complete


def test_a_redelivered_sample_answers_once() -> None:
    requests, results = InMemoryMailbox[Any, Any]("requests"), InMemoryMailbox[Any]("results")
    submit_dataset(sums(1), requests, reply_to=results, run_id="run")
    (message,) = requests.receive()
    loop = eval_loop(requests)
    message.nack()
    loop.run(max_iterations=2, wait_time_seconds=0)
    submit_dataset(sums(1), requests, reply_to=results, run_id="run")
    loop.run(max_iterations=1, wait_time_seconds=0)
    assert len(bodies(results)) == 1


def test_types_come_from_the_loop_and_expected_is_as_the_output() -> None:
    requests, _ = boxes()
    assert eval_loop(requests).sample_types == (str, str)
    of_its_own = EvalLoop[str, str, int](loop=main_loop(), evaluator=exact_match, requests=requests)
    assert of_its_own.sample_types == (str, int)
    of_its_own.run(max_iterations=1, wait_time_seconds=0)
    assert requests.body_type == EvalRequest[str, int]


def test_a_sample_of_the_wrong_type_fails_alone() -> None:
    requests, results = boxes()
    requests.send(EvalRequest(Sample("bad", 7, 7), "run"), reply_to=results)
    submit_dataset(sums(1), requests, reply_to=results, run_id="run")
    eval_loop(requests, dlq=DLQPolicy(mailbox=InMemoryMailbox[Any]("dead"))).run(
        max_iterations=2, wait_time_seconds=0
    )
    bad, good = bodies(results)
    assert bad.error_type == "SerializationError"
    assert bad.request_id is not None
    assert good.passed


def test_it_stops_like_every_loop() -> None:
    requests, _ = boxes()
    loop = eval_loop(requests, answer=add)
    assert loop.shutdown()
    loop.run()
    assert not loop.running
    assert loop.heartbeat is not None


@pytest.mark.parametrize("config", [None, WorkerConfig(concurrency=2)])
def test_a_failed_sample_waits_as_long_as_a_request_unless_told_otherwise(
    config: WorkerConfig | None,
) -> None:
    assert eval_loop(InMemoryMailbox("requests"), config=config)._worker.config.backoff == Backoff(
        base=60
    )
    own = WorkerConfig(backoff=Backoff())
    assert eval_loop(InMemoryMailbox("requests"), config=own)._worker.config.backoff.base == 2
