"""Thousands of async jobs in one process, on every backend and beside other libraries on Redis.

Each worker runs in a process of its own and is watched from outside. Ours is timed until its queue
is empty, others until their last job has ended.
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.harness import Row, report
from benchmarks.peers.environment import python_with
from benchmarks.peers.meter import OURS, Figures, measure, measure_held
from benchmarks.peers.peer import PEERS, Load
from testkit.servers import Standalone, servers_available

MANY = Load(count=10_000, seconds=1.0, concurrency=5000)
EXTENDED = replace(MANY, lease=1.0)
"""Jobs that take as long as their leases lose these unless they are extended."""
FEWER = replace(MANY, concurrency=1000)
HELD = Load(count=10_000, seconds=600.0, concurrency=10_000)
HELD_SECONDS = 30.0
"""Two beats of the default lease."""
BACKENDS = ("memory", "sqlite", "redis")


def rows() -> Iterator[Row]:
    """Measure the async worker on each backend, then its peers."""
    for backend in BACKENDS:
        with place(backend) as url:
            if url is None:
                print("  no server found: Redis and the peers were not measured")
                return
            ours = measure(OURS, url, MANY)
            yield from _loaded(backend, ours)
        with place(backend) as url:
            assert url is not None
            yield from _extended(measure(OURS, url, EXTENDED))
        with place(backend) as url:
            assert url is not None
            yield _steps(measure(OURS, url, FEWER), 0.35)
        with place(backend) as url:
            assert url is not None
            yield _held(url)
    for name, packages in PEERS.items():
        yield _beside(name, packages, ours)


@contextmanager
def place(backend: str) -> Iterator[str | None]:
    """Yield the URL of an empty backend; None if there is no server for it."""
    if backend == "memory":
        yield "memory://"
    elif backend == "sqlite":
        with tempfile.TemporaryDirectory() as directory:
            yield f"sqlite:///{directory}/jobs.db?durability=normal"
    else:
        binary = next(iter(servers_available().values()), None)
        if binary is None:
            yield None
            return
        with Standalone(binary) as server:
            yield server.url


def _loaded(backend: str, ours: Figures) -> Iterator[Row]:
    what = f"{MANY.count:,} jobs of 1 s, {MANY.concurrency:,} at once, {backend}"
    yield Row(f"{what}: time", ours.times_ideal, 1.5, "x", False, str(ours))
    yield Row("  peak memory", ours.usage.memory, 150, "MB", False)
    yield Row("  file handles", ours.usage.handles, 150, "", False)
    yield _steps(ours, 0.2)


def _extended(ours: Figures) -> Iterator[Row]:
    leases = ours.facts.get("leases", {})
    yield Row("  with leases of 1 s: time", ours.times_ideal, 1.5, "x", False, str(ours))
    detail = f"{leases.get('lost', 0)} leases lost, {leases.get('extended', 0):,} extensions"
    yield Row("  with leases of 1 s: jobs run twice", ours.run_twice, 0, "", False, detail)


def _steps(ours: Figures, target: float) -> Row:
    steps = ours.facts.get("steps", {})
    count = sum(number for name, number in steps.items() if name != "extend")
    detail = ", ".join(f"{number} {name}" for name, number in sorted(steps.items()))
    name = f"  store steps for each job, {ours.load.concurrency:,} at once"
    return Row(name, count / ours.load.count, target, "", False, f"{detail}; {ours}")


def _held(url: str) -> Row:
    used = measure_held(url, HELD, HELD_SECONDS)
    name = f"  {HELD.count:,} held leases, of a core"
    return Row(name, used / HELD_SECONDS * 100, 5, "%", False)


def _beside(name: str, packages: tuple[str, ...], ours: Figures) -> Row:
    """Put the same load on a peer; the figure is our time beside its own."""
    module, _, _ = name.partition(":")
    with place("redis") as url:
        assert url is not None
        theirs = measure(name, url, MANY, python_with(module, packages))
    title = f"the same, time beside {module}, redis"
    return Row(title, ours.seconds / theirs.seconds, 1.0, "x", False, f"{module}: {theirs}")


if __name__ == "__main__":
    report("async_jobs", rows())
