"""Workers die at random: every sample has one result all the same."""

import os
import random
import signal
from pathlib import Path

import pytest

import weakincentives
from testkit.waiting import eventually
from tests.evals.loops import QUEUE, sums
from tests.services import redis_url
from weakincentives.cli.eval_pool import ProcessPool
from weakincentives.evals import collect_results, submit_dataset
from weakincentives.ids import new_id

__all__ = ["redis_url"]

ROOT = Path(__file__).parents[2]
WORKERS = 4
LEASE = 2.0


def survived(url: str, count: int, kills: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluate while workers are killed, spread over the run, and count what came of it."""
    monkeypatch.chdir(ROOT)  # where worker processes find tests.evals.loops
    dataset, rng = sums(count), random.Random(count)
    moments = sorted(rng.sample(range(count // 20, count - count // 20), kills))
    killed, run = 0, f"run-{new_id()}"
    with weakincentives.connect(url) as backend:
        requests, results = backend.mailbox(QUEUE), backend.mailbox(run)
        submit_dataset(dataset, requests, reply_to=results, run_id=run)
        pool = ProcessPool("tests.evals.loops:trivial", WORKERS, LEASE, {"WINK_URL": url})

        def finished() -> bool:
            nonlocal killed
            there = results.approximate_count()
            pool.check(there, count)
            while killed < kills and there >= moments[killed]:
                os.kill(rng.choice(pool.pids), signal.SIGKILL)
                killed += 1
            return requests.approximate_count() == 0

        with pool:
            eventually(finished, within=240 + count / 50)
        assert killed == kills
        assert results.approximate_count() == count, "none is missing, none is there twice"
        report = collect_results(results, dataset=dataset, run_id=run, timeout_seconds=60)
        assert [one.sample_id for one in report.results] == [one.id for one in dataset]
        assert report.pass_rate == 1.0
        assert results.approximate_count() == 0


@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_two_hundred_samples(
    backend: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survived(url_of(backend, tmp_path, request), 200, 5, monkeypatch)


@pytest.mark.full
@pytest.mark.parametrize("backend", ["sqlite", "redis"])
def test_ten_thousand_samples(
    backend: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    survived(url_of(backend, tmp_path, request), 10_000, 40, monkeypatch)


def url_of(backend: str, tmp_path: Path, request: pytest.FixtureRequest) -> str:
    if backend == "sqlite":
        return f"sqlite:///{tmp_path}/evals.db"
    url: str = request.getfixturevalue("redis_url")
    return url
