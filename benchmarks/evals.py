"""Evaluation: how much faster four worker processes are than one when samples wait for I/O.

Workers are started and warm before the clock runs; it stops when the last result is collected.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import weakincentives
from benchmarks.harness import Row, report, timed
from weakincentives.adapters import CallableAdapter
from weakincentives.cli.eval_pool import ProcessPool
from weakincentives.evals import Dataset, EvalLoop, Sample, collect_results, submit_dataset
from weakincentives.ids import new_id
from weakincentives.runtime import InMemoryMailbox, MainLoop
from weakincentives.runtime.mailbox.seam.backend import Backend

SAMPLES = 200
SECONDS_EACH = 0.05
REQUESTS = "evals"


def rows() -> Iterator[Row]:
    """Measure the wall time of one run with one worker and with four, on SQLite."""
    with tempfile.TemporaryDirectory() as place:
        url = f"sqlite:///{place}/evals.db"
        one, four = (_wall_time(url, workers) for workers in (1, 4))
        yield Row(
            f"{SAMPLES} samples of {SECONDS_EACH * 1000:g} ms: 4 workers over 1",
            one / four,
            3.3,
            detail=f"{one:.1f} s and {four:.1f} s",
        )


def waiting(backend: Backend) -> EvalLoop[Any, Any, Any]:
    """What the workers serve: each sample waits, and answers with its worker's process id."""

    def answer(prompt: Any) -> int:
        time.sleep(SECONDS_EACH)
        return os.getpid()

    inner: MainLoop[Any, Any] = MainLoop(
        adapter=CallableAdapter(answer), requests=InMemoryMailbox("unused")
    )
    return EvalLoop(
        loop=inner,
        evaluator=lambda output, expected: True,
        requests=backend.mailbox(REQUESTS),
    )


def _wall_time(url: str, workers: int) -> float:
    pool = ProcessPool("benchmarks.evals:waiting", url, workers, 30)
    with weakincentives.connect(url) as backend, pool:
        deadline = time.monotonic() + 60
        while len(_run(backend, 2 * workers)) < workers:
            assert time.monotonic() < deadline, "the workers did not start"
        return timed(lambda: _run(backend, SAMPLES))


def _run(backend: Backend, count: int) -> set[str | None]:
    """Evaluate so many samples and return which workers did."""
    dataset = Dataset(tuple(Sample(str(number), number, number) for number in range(count)))
    run = f"run-{new_id()}"
    results = backend.mailbox(run)
    submit_dataset(dataset, backend.mailbox(REQUESTS), reply_to=results, run_id=run)
    found = collect_results(
        results, dataset=dataset, run_id=run, timeout_seconds=120, progress=lambda *_: None
    )
    assert found.complete
    return {result.output for result in found.results}


if __name__ == "__main__":
    report("evals", rows())
