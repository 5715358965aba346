"""Two of everything: one of two places hangs, is slow or full; the other is as it was."""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field

from chaos.elsewhere import Elsewhere
from chaos.pairs import LEASE, Crew
from chaos.processes import Child
from chaos.small_disk import on_a_small_disk
from chaos.stage import Result, Stage, scenario

PROMPT = 3.0
"""A quick answer of the healthy side that takes longer is a violation; it takes milliseconds."""
PATIENCE = 45.0
"""Longer than a client waits for a place that hangs, and than a watchdog for a sign of life."""

Fault = Callable[[int], AbstractContextManager[None]]


@scenario("sqlite/sqlite", "sqlite/redis", "redis/redis", "redis/sqlite", full=2, short=1)
def one_of_two_hangs(stage: Stage):
    """the first is locked, stopped or silent; leases, answers, probes, SIGTERM at the second"""
    crew = Crew(stage)
    return _endured(stage, crew, crew.broken.hanging, hangs=True)


@scenario("sqlite/sqlite", "sqlite/redis", "redis/redis", "redis/sqlite", full=4, short=1)
def one_of_two_is_slow(stage: Stage):
    """the first answers 0.3 s late, or is locked for 0.3 s at a time; the same at the second"""
    crew = Crew(stage)
    return _endured(stage, crew, crew.broken.slow)


@scenario("redis/redis", "redis/sqlite", full=4, short=1)
def one_of_two_is_full(stage: Stage):
    """the first has no memory left; the same at the second"""
    crew = Crew(stage)
    return _endured(stage, crew, lambda trial: _full(crew, trial))


@scenario("sqlite/sqlite", "sqlite/redis", full=4, short=1)
def one_of_two_disks_is_full(stage: Stage):
    """the first is on a disk without room; the same at the second"""

    def endured(stage: Stage) -> Result:
        crew = Crew(stage, on_disk=True)
        return _endured(stage, crew, lambda trial: _full(crew, trial))

    return on_a_small_disk(stage, endured)


@scenario("redis/sqlite", full=2, short=1)
def answers_to_one_that_hangs(stage: Stage):
    """jobs of a file answer to a server that is stopped; the file is used by others meanwhile"""
    elsewhere, slowest = Elsewhere(stage), [0.0, 0.0]
    count = 0
    for _ in range(stage.trials):
        asked = elsewhere.begin(work=0.5)
        elsewhere.server.pause()
        try:
            until = time.monotonic() + (PATIENCE if stage.full else 2 * LEASE)
            while time.monotonic() < until:
                slowest = list(map(max, slowest, elsewhere.use_the_file()))
                count += 1
                time.sleep(0.02)
        finally:
            elsewhere.server.resume()
        stage.violations += elsewhere.wrong(asked)
    stage.violations += [f"late: the file took {took:.1f} s" for took in slowest if took > PROMPT]
    figures = {
        "sends and answers in the file": count,
        "slowest send, ms": round(slowest[0] * 1000, 1),
        "slowest answer, ms": round(slowest[1] * 1000, 1),
    }
    return Result(stage.trials, stage.violations, figures)


@contextmanager
def _full(crew: Crew, trial: int) -> Iterator[None]:
    with crew.broken.full(trial):
        crew.overfill(crew.broken)
        yield


def _endured(stage: Stage, crew: Crew, fault: Fault, *, hangs: bool = False) -> Result:
    """Break one side while both are at work, end one of two processes, and mend it again."""
    length = PATIENCE if stage.full and hangs else 2 * LEASE
    seen = Seen()
    crew.start()
    for trial in range(stage.trials):
        child = crew.start()
        kept = crew.begin(crew.healthy, length + 1)
        seen.before += [crew.ask(crew.healthy, PROMPT) for _ in range(10)]
        cut_off = crew.begin(crew.broken, LEASE / 2)
        with fault(trial):
            _endure(stage, crew, child, length, seen)
            if hangs and stage.full and crew.ready(child, crew.broken):
                stage.violations.append("ready at the one that hangs")
            crew.finish(kept)
            seen.ends.append(crew.terminate(child))
            seen.during.append(crew.ask(crew.healthy, PATIENCE))
        seen.recoveries.append(crew.ask(crew.broken, PATIENCE))
        crew.finish(cut_off)
        crew.rest(crew.broken)
        stage.violations += [
            f"duplicate: {id} ran {crew.runs(id)} times" for id in kept if crew.runs(id) != 1
        ]
    late = [took for took in seen.during if took > PROMPT]
    stage.violations += [f"late: an answer took {took:.1f} s" for took in late]
    return Result(stage.trials, stage.violations, seen.figures())


@dataclass
class Seen:
    """Times in seconds that were measured."""

    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Return the worst of each."""
        return {
            "answers of the healthy one": len(self.during),
            "slowest before, ms": round(max(self.before) * 1000, 1),
            "slowest meanwhile, ms": round(max(self.during) * 1000, 1),
            "end after SIGTERM max, s": round(max(self.ends), 2),
            "first answer of the mended one max, s": round(max(self.recoveries), 2),
        }


def _endure(stage: Stage, crew: Crew, child: Child, length: float, seen: Seen) -> None:
    """Use the healthy side for so long, and look for anything that is not as it should be."""
    until = time.monotonic() + length
    while time.monotonic() < until:
        seen.during.append(crew.ask(crew.healthy, PATIENCE))
        began = time.monotonic()
        lost, (status, report) = crew.lost(crew.healthy), crew.probe(child, "live")
        stage.violations += [f"lease lost: {id} came again" for id in lost]
        if status != 200:
            stage.violations.append(f"not alive: {report}")
        if not crew.ready(child, crew.healthy):
            reasons = crew.probe(child, "ready")[1]["reasons"]
            stage.violations.append(f"not ready at the healthy one: {reasons}")
        if time.monotonic() - began > PROMPT:
            stage.violations.append(f"late: probes took {time.monotonic() - began:.1f} s")
        time.sleep(0.05)
