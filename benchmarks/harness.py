"""Measuring side by side: ours and its reference in interleaved rounds of one run."""

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

from weakincentives.runtime import Mailbox, Worker, WorkerConfig

__all__ = ["AT_ONCE", "Row", "best_of", "compare", "report", "served", "served_async", "timed"]

AT_ONCE = 200
"""How many jobs an async worker runs at once where its best setting is measured."""


@dataclass(frozen=True, slots=True)
class Row:
    """One figure beside its target; ``at_least`` says which side of the target is good."""

    name: str
    figure: float
    target: float
    unit: str = "x"
    at_least: bool = True
    detail: str = ""

    @property
    def met(self) -> bool:
        return self.figure >= self.target if self.at_least else self.figure <= self.target


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that one call takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def compare(
    name: str,
    ours: Callable[[], float],
    reference: Callable[[], float],
    target: float,
    rounds: int = 5,
) -> Row:
    """Compare two rates (operations a second), interleaved, by their medians."""
    mine, theirs = [], []
    for _ in range(rounds):
        theirs.append(reference())
        mine.append(ours())
    rate, base = statistics.median(mine), statistics.median(theirs)
    return Row(name, rate / base, target, detail=f"{rate:,.0f}/s beside {base:,.0f}/s")


def served(box: Mailbox[Any, Any], batch: int, count: int) -> Callable[[], float]:
    """Return how many messages a second a worker with an empty handler serves."""
    worker = Worker(box, lambda body: None, config=WorkerConfig(batch=batch))

    def run() -> float:
        looks = count // batch
        return count / timed(lambda: worker.run(max_iterations=looks, wait_time_seconds=0))

    return run


def served_async(box: Mailbox[Any, Any], concurrency: int, count: int) -> Callable[[], float]:
    """Return how many messages a second a worker with an empty async handler serves."""

    def run() -> float:
        left = count

        async def handle(body: Any) -> None:
            nonlocal left
            left -= 1
            if left <= 0:
                worker.shutdown(timeout=0)

        worker = Worker(box, handle, config=WorkerConfig(concurrency=concurrency))
        seconds = timed(worker.run)
        return (count - left) / seconds  # what was leased with the last one is served too

    return run


def best_of(values: Iterable[float], fraction: float) -> float:
    """Return the value below which ``fraction`` of the values lie."""
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * fraction), len(ordered) - 1)]


def report(title: str, rows: Iterable[Row], *, as_json: bool = False) -> list[Row]:
    """Print each figure beside its target as it comes in."""
    shown = []
    if not as_json:
        print(f"\n{title} ({platform.python_implementation()} {platform.python_version()})")
        print(f"{'':2}{'':54}{'figure':>12}{'target':>12}")
    for row in rows:
        shown.append(row)
        if as_json:
            print(json.dumps({"suite": title, **asdict(row), "met": row.met}))
        else:
            sign = "≥" if row.at_least else "≤"
            mark = "✓" if row.met else "✗"
            print(
                f"{mark} {row.name:54}{row.figure:>10.2f} {row.unit:<2}"
                f"{sign} {row.target:g}  {row.detail}"
            )
        sys.stdout.flush()
    return shown
