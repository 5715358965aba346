"""Collecting: each sample once, nothing lost, whoever dies."""

import io
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from testkit.waiting import eventually
from tests.evals.loops import bodies, eval_loop, result, sums
from tests.services import redis_url
from weakincentives.evals import EvalReport, EvalResult, Score, collect_results, submit_dataset
from weakincentives.evals.messages import request_id_for
from weakincentives.ids import new_id
from weakincentives.runtime import (
    FakeMailbox,
    InMemoryMailbox,
    InvalidParameterError,
    MailboxConnectionError,
)

__all__ = ["redis_url"]

ROOT = Path(__file__).parents[2]


def results_of(*results: EvalResult) -> InMemoryMailbox[Any, Any]:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("results")
    for one in results:
        box.send(one)
    return box


def ids(report: EvalReport) -> list[str]:
    return [one.sample_id for one in report.results]


def test_each_sample_counts_once() -> None:
    box = results_of(result("a", 0.0), result("b"), result("a", 1.0), result("c"))
    report = collect_results(box, expected_count=3, timeout_seconds=5)
    assert ids(report) == ["a", "b", "c"]
    assert report.results[0].score.value == 0.0, "the first result stands"
    assert report.complete
    assert box.approximate_count() == 0, "duplicates go with the rest"


def test_a_replayed_dead_letter_replaces_its_error() -> None:
    failed = result("a", 0.0, error="Dead-lettered after 5 attempts", error_type="TimeoutError")
    box = results_of(failed, result("a", 1.0), result("b"))
    report = collect_results(box, expected_count=2, timeout_seconds=5)
    assert report.results[0].passed


def test_at_the_timeout_it_names_what_is_missing_and_gives_back_what_it_has() -> None:
    box = results_of(*(result(f"sum-{n}", run_id="run") for n in (4, 0, 2)))
    report = collect_results(box, dataset=sums(5), run_id="run", timeout_seconds=0)
    assert ids(report) == ["sum-0", "sum-2", "sum-4"]
    assert report.missing == ("sum-1", "sum-3")
    assert (report.missing_count, report.complete) == (2, False)
    for n in (1, 3):
        box.send(result(f"sum-{n}", run_id="run"))
    again = collect_results(box, dataset=sums(5), run_id="run", timeout_seconds=5)
    assert ids(again) == [f"sum-{n}" for n in range(5)]
    assert box.approximate_count() == 0


def test_without_a_data_set_the_number_of_missing_is_known() -> None:
    report = collect_results(results_of(result("a")), expected_count=3, timeout_seconds=0)
    assert (report.missing, report.missing_count) == ((), 2)


def test_results_of_other_runs_are_left_alone() -> None:
    box: FakeMailbox[Any, Any] = FakeMailbox("results")
    for run in ("old", "new"):
        box.send(result("a", run_id=run))
    box.send("no result at all")
    report = collect_results(box, expected_count=1, run_id="new", timeout_seconds=5)
    assert [one.run_id for one in report.results] == ["new"]
    assert box.receive() == []
    box.advance(6)
    assert sorted(str(body) for body in bodies(box))[1] == "no result at all"


def test_without_a_run_everything_is_counted() -> None:
    box = results_of(result("a", run_id="one"), result("a", run_id="two"))
    report = collect_results(box, expected_count=2, timeout_seconds=5)
    assert (report.total_samples, report.run_id) == (2, None)


def test_with_a_data_set_a_sample_counts_once_in_all_runs() -> None:
    box = results_of(*(result("sum-0", run_id=run) for run in ("one", "two")))
    report = collect_results(box, dataset=sums(2), timeout_seconds=0)
    assert (ids(report), report.missing) == (["sum-0"], ("sum-1",))


def test_what_is_no_mailbox_of_results_yet_becomes_one() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("results", serialize=True)
    box.send(result("a", tags=("x",)))
    assert collect_results(box, expected_count=1, timeout_seconds=5).results[0].tags == ("x",)


def test_it_is_saved_before_it_is_acknowledged() -> None:
    box = results_of(result("a"), result("b"))
    seen: list[int] = []

    def save(report: EvalReport) -> None:
        seen.append(box.stats().in_flight)

    collect_results(box, expected_count=2, timeout_seconds=5, save=save)
    assert seen == [2]
    assert box.approximate_count() == 0


def test_what_cannot_be_saved_stays() -> None:
    box = results_of(result("a"), result("b"))

    def save(report: EvalReport) -> None:
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        collect_results(box, expected_count=2, timeout_seconds=5, save=save)
    assert box.stats().pending == 2


def test_whatever_interrupts_it_gives_the_results_back() -> None:
    box = results_of(result("a"))

    def impatient(done: int, expected: int) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect_results(box, expected_count=2, timeout_seconds=5, progress=impatient)
    assert box.stats().pending == 1


def test_a_terminal_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    collect_results(results_of(result("a")), expected_count=1, timeout_seconds=5)
    assert "1/1" in sys.stderr.getvalue()


@pytest.mark.parametrize("typed", [True, False])
def test_a_result_that_cannot_be_read_is_a_failed_sample(typed: bool, tmp_path: Path) -> None:
    """It says of which sample it is, so nobody has to wait for it until the timeout."""
    with weakincentives.connect(f"sqlite:///{tmp_path}/evals.db") as backend:
        box = backend.mailbox("results")
        broken = {"sample_id": "sum-1", "run_id": "run", "score": {"value": 1.0, "passed": 1}}
        box.send(broken if typed else {**broken, "score": "high"})
        box.send({"request_id": str(request_id_for("run", "sum-2")), "score": None})
        box.send({"what": "is this"})
        box.send(result("sum-0", run_id="run"))
        report = collect_results(
            backend.mailbox("results", body_type=EvalResult) if typed else box,
            dataset=sums(3),
            run_id="run",
            timeout_seconds=30,
        )
        assert report.complete
        good, bad, worse = report.results
        assert good.passed
        assert (bad.error_type, worse.error_type) == ("SerializationError",) * 2
        assert bad.error is not None
        assert "cannot be read" in bad.error
        assert (bad.tags, bad.score) == (("odd",), Score(0.0, False))
        assert report.errors_by_type() == {"SerializationError": 2}


def test_a_result_that_can_be_read_replaces_one_that_cannot(tmp_path: Path) -> None:
    with weakincentives.connect(f"sqlite:///{tmp_path}/evals.db") as backend:
        box = backend.mailbox("results")
        box.send({"sample_id": "sum-0", "run_id": "run", "score": 3})
        box.send(result("sum-0", run_id="run"))
        box.send(result("sum-1", run_id="run"))
        report = collect_results(box, dataset=sums(2), run_id="run", timeout_seconds=30)
        assert [one.passed for one in report.results] == [True, True]


class Foreign:
    """A mailbox of somebody else's: all that a collector needs, and no batches of leases."""

    def __init__(self, box: Any) -> None:
        self.name, self.limits = box.name, box.limits
        self.receive = box.receive
        self.acknowledge_batch = box.acknowledge_batch


def test_any_mailbox_will_do() -> None:
    box = results_of(result("a"))
    foreign: Any = Foreign(box)
    assert not collect_results(foreign, expected_count=2, timeout_seconds=0).complete
    assert box.stats().pending == 1
    assert collect_results(foreign, expected_count=1, timeout_seconds=5).complete
    assert box.approximate_count() == 0


def test_results_that_cannot_be_removed_are_reported_all_the_same() -> None:
    box: FakeMailbox[Any, Any] = FakeMailbox("results")
    box.send(result("a"))

    def cut(report: EvalReport) -> None:
        box.set_connection_error(MailboxConnectionError("down"))

    report = collect_results(box, expected_count=1, timeout_seconds=5, save=cut)
    assert report.complete
    box.set_connection_error(None)
    assert box.approximate_count() == 1


def test_progress_is_told() -> None:
    told: list[tuple[int, int]] = []
    collect_results(
        results_of(result("a"), result("b")),
        expected_count=2,
        timeout_seconds=5,
        progress=lambda done, expected: told.append((done, expected)),
    )
    assert told[0] == (0, 2)
    assert told[-1] == (2, 2)


def test_a_cut_connection_is_waited_out() -> None:
    box: FakeMailbox[Any, Any] = FakeMailbox("results")
    box.send(result("a"))
    box.set_connection_error(MailboxConnectionError("down"))
    told: list[int] = []

    def progress(done: int, expected: int) -> None:
        told.append(done)
        if len(told) == 2:
            box.set_connection_error(None)

    report = collect_results(box, expected_count=1, timeout_seconds=30, progress=progress)
    assert ids(report) == ["a"]


def test_nothing_ever_heard_is_no_empty_report() -> None:
    box: FakeMailbox[Any, Any] = FakeMailbox("results")
    box.set_connection_error(MailboxConnectionError("down"))
    with pytest.raises(MailboxConnectionError):
        collect_results(box, expected_count=1, timeout_seconds=0)


@pytest.mark.parametrize("nowhere", [None, "results"])
def test_results_must_go_somewhere(nowhere: Any) -> None:
    requests: InMemoryMailbox[Any, Any] = InMemoryMailbox("requests")
    with pytest.raises(InvalidParameterError, match="reply_to"):
        submit_dataset(sums(1), requests, reply_to=nowhere)
    assert requests.stats().total == 0


@pytest.mark.parametrize("expected", [None, -1, 2.5, True])
def test_it_must_know_how_many_to_wait_for(expected: Any) -> None:
    with pytest.raises(InvalidParameterError, match="expected_count"):
        collect_results(results_of(), expected_count=expected)


@pytest.mark.parametrize("timeout", [-1, float("nan"), None, "10", True])
def test_the_timeout_is_checked(timeout: Any) -> None:
    with pytest.raises(InvalidParameterError, match="timeout_seconds"):
        collect_results(results_of(), expected_count=1, timeout_seconds=timeout)


def test_leases_are_kept_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weakincentives.evals.collection.LEASE", 0.4)
    with weakincentives.connect(f"sqlite:///{tmp_path}/evals.db") as backend:
        box = backend.mailbox("results")
        box.send(result("a"))
        report = collect_results(box, expected_count=2, timeout_seconds=2)
        assert ids(report) == ["a"]
        (message,) = box.receive()
        assert message.delivery_count == 2, "it was received once, and is now"


@pytest.mark.parametrize("kind", ["memory", "sqlite", "redis"])
def test_a_run_submitted_twice_is_one_run(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "redis":
        url = request.getfixturevalue("redis_url")
    else:
        url = "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/evals.db"
    with weakincentives.connect(url) as backend:
        requests, results = backend.mailbox(f"requests-{new_id()}"), backend.mailbox("run")
        run = submit_dataset(sums(250), requests, reply_to=results)
        assert submit_dataset(sums(250), requests, reply_to=results, run_id=run) == run
        assert requests.approximate_count() == 250
        other = submit_dataset(sums(3), requests, reply_to=results)
        assert other != run
        assert requests.approximate_count() == 253


def test_a_collector_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    """It has received results and reported none: the next one counts all of them."""
    url = f"sqlite:///{tmp_path}/evals.db"
    with weakincentives.connect(url) as backend:
        requests, results = backend.mailbox("requests"), backend.mailbox("run")
        run = submit_dataset(sums(60), requests, reply_to=results, run_id="run")
        loop = eval_loop(requests)
        loop.run(max_iterations=40, wait_time_seconds=0)
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.evals.collector", url, "run", "60"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "40\n"
            assert results.stats().in_flight == 40
        finally:
            child.send_signal(signal.SIGKILL)
            child.communicate(timeout=120)
        working = threading.Thread(target=loop.run, kwargs={"wait_time_seconds": 1})
        working.start()
        report = collect_results(results, dataset=sums(60), run_id=run, timeout_seconds=60)
        assert loop.shutdown()
        working.join()
        assert report.complete
        assert report.pass_rate == 1.0
        eventually(lambda: results.approximate_count() == 0)
