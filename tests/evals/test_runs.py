"""Runs that are cut off and resumed: nothing that was evaluated is evaluated again."""

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
import redis

import weakincentives
from testkit.waiting import eventually
from tests.evals.loops import eval_loop, result, sums
from tests.services import redis_url
from weakincentives.cli.app import run as wink
from weakincentives.errors import WinkError
from weakincentives.evals import Dataset, EvalReport, collect_results, collection, submit_dataset
from weakincentives.evals.runs import BEGUN, REPORTED, Run, record_name
from weakincentives.ids import new_id
from weakincentives.runtime import FakeMailbox, InMemoryMailbox, MailboxConnectionError
from weakincentives.runtime.mailbox.queue_names import check_name
from weakincentives.runtime.mailbox.send import stored_of

__all__ = ["redis_url"]

MODULE = """
import os, pathlib, time
from weakincentives.adapters import CallableAdapter
from weakincentives.evals import EvalLoop, exact_match
from weakincentives.runtime import InMemoryMailbox, MainLoop

QUEUE = pathlib.Path("queue").read_text()

def paid(prompt):
    with open("paid", "a") as file:
        file.write(prompt.params + "\\n")
    time.sleep(0.02)
    return str(2 * int(prompt.params.split("+")[0]))

def loop(backend):
    inner = MainLoop[str, str](adapter=CallableAdapter(paid), requests=InMemoryMailbox("unused"))
    return EvalLoop(loop=inner, evaluator=exact_match, requests=backend.mailbox(QUEUE))
"""

# A process that collects with leases that end soon after it was killed, but not at once.
COMMAND = """
import sys
from weakincentives.cli.app import run
from weakincentives.evals import collection
collection.LEASE = 8.0
sys.exit(run(["eval", "run", *sys.argv[1:]]))
"""


def paid(place: Path) -> list[str]:
    file = place / "paid"
    return file.read_text().splitlines() if file.exists() else []


def forget_ids(url: str, queue: str) -> None:
    """Let the mailbox forget whose ids it knows, as it does five minutes after they were sent."""
    if url.startswith("sqlite"):
        file = apsw.Connection(url.removeprefix("sqlite:///"))
        file.set_busy_timeout(30_000)
        file.execute("DELETE FROM known")
        file.close()
    else:
        with redis.Redis.from_url(url) as client:
            keys = [key for key in client.scan_iter() if queue.encode() in key]
            assert client.delete(*[key for key in keys if key.endswith(b":sent")]) == 1, keys


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_run_that_was_killed_pays_for_no_sample_twice(
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    """Killed while its results are leased to it, and resumed when the ids are forgotten."""
    queue, name = f"evals-{new_id()}", f"run-{new_id()}"
    url = f"sqlite:///{tmp_path}/e.db" if kind == "sqlite" else request.getfixturevalue("redis_url")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    (tmp_path / "costly.py").write_text(MODULE)
    (tmp_path / "queue").write_text(queue)
    sums(120).save(tmp_path / "data.jsonl")
    arguments = ("costly:loop", "data.jsonl", "--workers", "2", "--run", name, "--url", url)
    first = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *arguments], stderr=subprocess.DEVNULL, cwd=tmp_path
    )
    with weakincentives.connect(url) as backend:
        results = backend.mailbox(name)
        try:
            eventually(lambda: results.stats().in_flight >= 20, within=120)
        finally:
            first.send_signal(signal.SIGKILL)
            first.wait(60)
        forget_ids(url, queue)
        assert results.stats().in_flight >= 20, "hidden by the leases of the dead"
        try:
            assert wink(["eval", "run", *arguments, "--timeout", "60", "--report", "out.json"]) == 0
        finally:
            sys.modules.pop("costly", None)
        assert [each for each in Counter(paid(tmp_path)).items() if each[1] > 1] == []
        report = EvalReport.load(tmp_path / "out.json")
        assert (report.total_samples, report.pass_rate) == (120, 1.0)
        assert results.stats().total == 0
        assert backend.mailbox(record_name(name)).stats().total == 0


class Boxes:
    """The mailboxes of a run, in the memory of this process."""

    def __init__(self, count: int = 5) -> None:
        self.requests: FakeMailbox[Any, Any] = FakeMailbox("requests")
        self.results: Any = InMemoryMailbox("run")
        self.record: InMemoryMailbox[Any, Any] = InMemoryMailbox("run.run")
        self.dataset = sums(count)
        self.evaluated: list[str] = []

    def run(self) -> Run:
        return Run("run", self.dataset, self.requests, self.results, self.record)

    def evaluate(self, count: int) -> None:
        def answer(text: str) -> str:
            self.evaluated.append(text)
            return str(2 * int(text.split("+")[0]))

        loop = eval_loop(self.requests, answer)
        loop.run(max_iterations=count, wait_time_seconds=0)

    def resume(self, progress: Callable[[int, int], object] | None = None) -> EvalReport:
        """Resume, and evaluate whatever is queued at each look."""

        def work(done: int, expected: int) -> None:
            if progress is not None:
                progress(done, expected)
            else:
                self.evaluate(1)

        return self.run().resume(timeout=30, save=lambda report: None, progress=work)

    def assert_each_paid_once(self, report: EvalReport) -> None:
        assert report.complete
        assert sorted(self.evaluated) == sorted(sample.input for sample in self.dataset)


def test_a_run_is_begun_once() -> None:
    boxes = Boxes()
    assert boxes.run().begin()
    boxes.requests.advance(3600)
    assert not boxes.run().begin()
    assert boxes.requests.stats().total == 5
    boxes.assert_each_paid_once(boxes.resume())
    assert boxes.record.stats().total == 0


def test_hours_later_nothing_is_sent_again() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(3)
    boxes.requests.advance(10 * 3600)
    boxes.assert_each_paid_once(boxes.resume())


def test_a_sample_in_flight_is_not_sent_again_though_it_has_no_result_yet() -> None:
    """Its worker ends it between two looks: after the results were seen, before any sending."""
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(4)
    boxes.requests.advance(10 * 3600)

    def finish_late(done: int, expected: int) -> None:
        if done == 4:
            boxes.evaluate(1)

    report = boxes.run().resume(timeout=30, save=lambda report: None, progress=finish_late)
    boxes.assert_each_paid_once(report)


def test_what_a_killed_submission_did_not_send_is_sent() -> None:
    boxes = Boxes()
    boxes.record.send(BEGUN)
    whole, boxes.dataset = boxes.dataset, Dataset(boxes.dataset.samples[:2])
    boxes.run()._submit(boxes.dataset)
    boxes.dataset = whole
    boxes.requests.advance(10 * 3600)
    boxes.assert_each_paid_once(boxes.resume())


@pytest.mark.parametrize("evaluated", [3, 5])
def test_the_progress_of_a_resumed_run_never_goes_back(evaluated: int) -> None:
    """Not from what an earlier process had brought, nor when the results are read once more."""
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(evaluated)
    boxes.requests.purge()
    boxes.requests.advance(10 * 3600)
    run = boxes.run()
    assert not run.begin()
    told = [run.look().total_samples]

    def tell(done: int, expected: int) -> None:
        told.append(done)
        boxes.evaluate(1)

    if evaluated == 5:
        report = run.collect(timeout=30, save=lambda report: None, progress=tell)
    else:
        report = run.resume(timeout=30, save=lambda report: None, progress=tell)
    boxes.assert_each_paid_once(report)
    assert told == sorted(told)
    assert (told[0], told[-1]) == (evaluated, 5)


def test_samples_that_were_purged_are_sent_again() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(2)
    boxes.requests.purge()
    boxes.requests.advance(10 * 3600)
    boxes.assert_each_paid_once(boxes.resume())


def test_results_that_a_dead_collector_holds_are_waited_for() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(5)
    assert len(boxes.results.receive(max_messages=3, visibility_timeout=1)) == 3
    boxes.requests.advance(10 * 3600)
    boxes.assert_each_paid_once(boxes.resume())


def test_while_another_process_collects_nothing_is_sent() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(5)
    boxes.results.receive(max_messages=3, visibility_timeout=3600)
    report = boxes.run().resume(timeout=0.3, save=lambda report: None, progress=lambda *_: None)
    assert report.missing_count == 3
    assert boxes.requests.stats().total == 0


def test_a_run_submitted_by_other_means_is_resumed() -> None:
    boxes = Boxes()
    boxes.results.send(result("sum-1", run_id="run"))
    assert not boxes.run().begin()
    boxes.evaluated.append("1+1")
    boxes.assert_each_paid_once(boxes.resume())


def test_looking_takes_nothing_away() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(5)
    assert boxes.run().look().complete
    assert boxes.run().look().complete
    assert boxes.results.stats().pending == 5


def test_killed_after_the_report_it_is_not_evaluated_again() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(5)

    def killed(report: EvalReport) -> None:
        raise SystemExit(137)

    boxes.record.purge = killed  # type: ignore[method-assign, assignment]
    with pytest.raises(TypeError):
        boxes.run().collect(timeout=5, save=lambda report: None, progress=lambda *_: None)
    assert boxes.results.stats().total == 0
    assert [note.body for note in boxes.record.peek()] == [BEGUN, REPORTED]
    with pytest.raises(WinkError, match="run run is complete and was reported"):
        boxes.run().begin()


def test_submitting_again_sends_what_has_no_result_and_is_not_queued() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(2)
    boxes.requests.advance(10 * 3600)
    again = boxes.run()
    assert not again.begin()
    assert again.submit_rest() == (0, 2, 3)
    assert boxes.requests.stats().total == 3


class Results(InMemoryMailbox[Any, Any]):
    """Results to which something happens when they are received for the n-th time."""

    happens: dict[int, Callable[[], object]]
    count = 0

    def receive(self, **options: Any) -> list[Any]:
        self.count += 1
        self.happens.pop(self.count, lambda: None)()
        return super().receive(**options)


def with_results(happens: dict[int, Callable[[], object]]) -> Boxes:
    """Return a run whose samples are all evaluated, hours ago."""
    boxes = Boxes()
    boxes.results = Results("run")
    boxes.results.happens = happens
    boxes.run().begin()
    boxes.evaluate(5)
    boxes.requests.advance(10 * 3600)
    return boxes


def test_a_connection_that_fails_between_two_results_pays_for_nothing_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collection, "BATCH", 2)

    def fail() -> None:
        raise MailboxConnectionError("cut")

    boxes = with_results({2: fail})
    boxes.assert_each_paid_once(boxes.resume())


def test_two_processes_that_resume_at_once_pay_for_nothing_twice() -> None:
    """The other one leases results after this one saw that nobody does."""

    def take() -> None:
        other: Any = super(Results, boxes.results)
        assert len(other.receive(max_messages=3, visibility_timeout=1)) == 3

    boxes = with_results({1: take})
    boxes.assert_each_paid_once(boxes.resume())


def test_the_library_submits_again_what_has_no_result_and_is_not_queued() -> None:
    boxes = Boxes()
    submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results, run_id="run")
    boxes.evaluate(3)
    boxes.requests.advance(10 * 3600)
    submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results, run_id="run")
    assert boxes.requests.stats().total == 2
    boxes.requests.purge()
    submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results, run_id="run")
    boxes.evaluate(10)
    report = collect_results(boxes.results, dataset=boxes.dataset, run_id="run", timeout_seconds=30)
    boxes.assert_each_paid_once(report)


def test_the_library_sends_nothing_again_while_results_are_collected() -> None:
    boxes = with_results({})
    boxes.results.receive(max_messages=3, visibility_timeout=3600)
    with pytest.raises(WinkError, match="not all results of run run are visible"):
        submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results, run_id="run")
    assert boxes.requests.stats().total == 0


def test_a_run_with_an_id_of_its_own_looks_at_no_results() -> None:
    boxes = with_results({1: lambda: pytest.fail("nobody need look")})
    submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results)
    assert boxes.requests.stats().total == 5


def test_submitting_again_while_results_are_collected_sends_nothing() -> None:
    boxes = with_results({})
    boxes.results.receive(max_messages=3, visibility_timeout=3600)
    with pytest.raises(WinkError, match="not all results of run run are visible"):
        boxes.run().submit_rest()
    assert boxes.requests.stats().total == 0


def test_what_is_no_result_does_not_keep_a_run_from_being_resumed() -> None:
    boxes = Boxes()
    boxes.record.send(BEGUN)
    boxes.results.send("junk")
    boxes.assert_each_paid_once(boxes.resume())


def test_a_run_whose_id_was_used_a_minute_ago_is_refused() -> None:
    """Its samples are known, and so nobody would evaluate them again."""
    boxes = Boxes()
    boxes.run().begin()
    boxes.assert_each_paid_once(boxes.resume())
    for _ in range(2):
        with pytest.raises(WinkError, match="run run is over: 5 of its 5 samples were sent"):
            boxes.run().begin()
        assert boxes.record.stats().total == 0, "nothing was begun"
    boxes.requests.advance(301)
    assert boxes.run().begin()
    assert boxes.requests.stats().total == 5


def test_samples_that_cannot_be_sent_again_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.assert_each_paid_once(boxes.resume())
    boxes.record.send(BEGUN)
    started = time.monotonic()
    report = boxes.run().resume(timeout=60, save=lambda report: None, progress=lambda *_: None)
    assert report.missing_count == 5
    assert time.monotonic() - started < 30
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "5 samples have neither a request nor a result, and are not sent again" in warning


def test_the_library_refuses_the_id_of_a_run_that_is_over() -> None:
    boxes = Boxes()
    for expected in ("all", "none"):
        if expected == "none":
            with pytest.raises(WinkError, match="run run is over: 5 of its 5 samples were sent"):
                submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results, run_id="run")
            break
        submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results, run_id="run")
        boxes.evaluate(5)
        assert collect_results(boxes.results, dataset=boxes.dataset, run_id="run").complete


def test_the_library_says_how_many_samples_it_left_out(caplog: pytest.LogCaptureFixture) -> None:
    boxes = Boxes()
    for _ in range(2):
        submit_dataset(boxes.dataset, boxes.requests, reply_to=boxes.results, run_id="run")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert warning.startswith("run run: sent 0 of 5 samples; 5 were sent before")


@pytest.mark.parametrize("url", ["memory://", "sqlite:///e.db", "redis"])
def test_a_batch_says_how_many_of_its_messages_are_new(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    url = request.getfixturevalue("redis_url") if url == "redis" else url
    with weakincentives.connect(url) as backend:
        box, ids = backend.mailbox(f"new-{new_id()}"), [new_id(), new_id(), new_id()]
        assert stored_of(box.send_batch([1, 2], message_ids=ids[:2])) == 2
        assert stored_of(box.send_batch([1, 2, 3], message_ids=ids)) == 1
        assert box.send_batch([1, 2, 3], message_ids=ids) == ids
        assert stored_of(box.send_batch([1, 2, 3], message_ids=ids)) == 0
        assert stored_of(box.send_batch([1, 2])) == 2
        assert stored_of(box.send_batch([])) == 0
    assert stored_of(["a", "list", "of", "another", "mailbox"]) is None


def test_a_collector_that_gets_nothing_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(collection, "MAX_WAIT", 0.01)
    monkeypatch.setattr(collection, "SILENCE", 0.05)
    boxes = Boxes()
    collect_results(boxes.results, dataset=boxes.dataset, run_id="lost", timeout_seconds=0.5)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "0 of 5 results of run lost" in warning


def test_requests_that_cannot_be_counted_for_a_while_do_not_end_a_run() -> None:
    boxes = Boxes()
    boxes.run().begin()
    boxes.evaluate(2)
    failing = [MailboxConnectionError("cut"), None]

    def cut_once(done: int, expected: int) -> None:
        error = failing.pop(0) if failing else None
        boxes.requests.set_connection_error(error)
        if error is None:
            boxes.evaluate(1)

    boxes.assert_each_paid_once(boxes.resume(cut_once))


def test_the_record_of_any_run_has_a_name() -> None:
    for id in ("nightly", "x" * 80):
        assert check_name(record_name(id)).endswith(".run")
    assert record_name("x" * 80) != record_name("y" * 80)
