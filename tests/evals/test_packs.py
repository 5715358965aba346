"""Many results: put together into few messages, so that few leases are held, and none is lost."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from tests.evals.loops import result, sums
from tests.services import redis_url
from weakincentives.evals import EvalReport, EvalResult, collect_results, collection
from weakincentives.evals.result_codec import pack
from weakincentives.ids import new_id
from weakincentives.runtime import (
    InMemoryMailbox,
    MailboxConnectionError,
    MailboxFullError,
    Message,
)

__all__ = ["redis_url"]

ROOT = Path(__file__).parents[2]
COUNT = 500


@pytest.fixture(autouse=True)
def small_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collection, "PACK_AT", 100)
    monkeypatch.setattr(collection, "PACK_SIZE", 50)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def box(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    urls: dict[str, Callable[[], str]] = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/evals.db",
        "redis": lambda: str(request.getfixturevalue("redis_url")),
    }
    with weakincentives.connect(urls[request.param]()) as backend:
        yield backend.mailbox(f"results-{new_id()}", body_type=EvalResult)


def fill(box: Any, count: int = COUNT, **more: Any) -> None:
    more.setdefault("run_id", "run")
    box.send_batch([result(f"sum-{n}", **more) for n in range(count)])


def collect(box: Any, count: int = COUNT, timeout: float = 60, **more: Any) -> EvalReport:
    return collect_results(box, dataset=sums(count), run_id="run", timeout_seconds=timeout, **more)


def test_few_leases_are_held_however_many_results_there_are(box: Any) -> None:
    fill(box)
    held: list[int] = []
    report = collect(box, COUNT + 1, 0, progress=lambda *_: held.append(box.stats().in_flight))
    assert report.missing == (f"sum-{COUNT}",)
    assert max(held) <= 200
    assert box.stats().total == 10, "500 results in packs of 50"
    box.send(result(f"sum-{COUNT}", run_id="run"))
    again = collect(box, COUNT + 1)
    assert again.results[:-1] == report.results
    assert again.complete
    assert box.stats().total == 0


def test_a_complete_run_leaves_nothing_behind(box: Any) -> None:
    fill(box)
    assert collect(box).complete
    assert box.stats().total == 0, "packs that were sent and not needed are removed too"


def test_a_pack_that_is_too_large_becomes_several() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("results", serialize=True)
    fill(box, 100, output='"' * 9_000)
    before = collect(box, 101, 0)
    assert before.total_samples == 100
    assert 3 <= box.stats().total <= 8
    assert collect(box, 100).results == before.results


def test_results_of_others_in_a_pack_are_left_to_them(
    box: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collection, "OTHER_RUN_DELAY", 0.2)
    fill(box, 200)
    collect(box, 201, 0)
    few = collect(box, 120)
    assert few.total_samples == 120
    rest = collect(box, 200, 1)
    assert [one.sample_id for one in rest.results] == [f"sum-{n}" for n in range(120, 200)]


def test_runs_are_packed_apart(box: Any) -> None:
    fill(box, 100, run_id="one")
    fill(box, 100, run_id="two")
    both = collect_results(box, expected_count=201, timeout_seconds=0)
    assert both.total_samples == 200
    one = collect_results(box, dataset=sums(100), run_id="one", timeout_seconds=60)
    assert one.complete
    two = collect_results(box, dataset=sums(100), run_id="two", timeout_seconds=60)
    assert two.complete
    assert box.stats().total == 0


@pytest.mark.parametrize("refusal", [MailboxFullError("full"), MailboxConnectionError("cut")])
def test_results_that_cannot_be_packed_stay_apart(refusal: Exception) -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("results")
    fill(box)

    def refuse(body: Any) -> str:
        raise refusal

    box.send = refuse  # type: ignore[method-assign]
    assert collect(box).complete
    assert box.stats().total == 0


def test_results_that_json_cannot_carry_stay_apart() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("results")
    fill(box, output="\ud800")
    assert collect(box).complete
    assert box.stats().total == 0


def test_an_error_in_a_pack_gives_way_to_a_result(box: Any) -> None:
    fill(box, 100, error="Dead-lettered", error_type="TimeoutError")
    assert collect(box, 101, 0).error_count == 100
    box.send(result("sum-7", run_id="run"))
    report = collect(box, 100, 0)
    assert report.complete
    box.send(pack(report.results, "run"))
    box.send(result("sum-7", run_id="run"))
    assert collect(box, 101, 0).results[7].passed


@pytest.mark.parametrize("moment", ["sent", "removed"])
@pytest.mark.parametrize("kind", ["sqlite", "redis"])
def test_a_collector_that_is_killed_while_it_packs_loses_nothing(
    kind: str, moment: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    url = f"sqlite:///{tmp_path}/e.db" if kind == "sqlite" else request.getfixturevalue("redis_url")
    name = f"results-{new_id()}"
    with weakincentives.connect(url) as backend:
        box = backend.mailbox(name, body_type=EvalResult)
        fill(box, 400)
        killed = subprocess.run(
            [sys.executable, "-m", "tests.evals.test_packs", url, name, moment],
            cwd=ROOT,
            timeout=120,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        # More than there were: some are in a pack and on their own, and count once.
        report = collect(box, 401, timeout=5)
        assert [one.sample_id for one in report.results] == [f"sum-{n}" for n in range(400)]
        assert collect(box, 400).complete


def die_while_packing(url: str, name: str, moment: str) -> None:
    """Collect, and die by a signal after the third pack was sent, or its results removed."""
    collection.LEASE, collection.PACK_AT, collection.PACK_SIZE = 1.0, 100, 50
    with weakincentives.connect(url) as backend:
        box = backend.mailbox(name, body_type=EvalResult)
        method = "send" if moment == "sent" else "acknowledge_batch"
        inner, calls = getattr(box, method), 0

        def counted(body: EvalResult | list[Message[Any, Any]]) -> Any:
            nonlocal calls
            answer = inner(body)
            calls += 1
            if calls == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return answer

        setattr(box, method, counted)
        collect(box, 401)


if __name__ == "__main__":
    die_while_packing(*sys.argv[1:])
