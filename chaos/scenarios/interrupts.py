"""Signals, at any moment of any operation; see chaos/interrupts.py."""

import gc
import json
import random
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from chaos.interrupts import HANDLERS, OPERATIONS, World, each_point
from chaos.ledger import Interruptions
from chaos.stage import Result, Stage, scenario


@scenario("memory", "sqlite", "redis", full=1, short=15)
def each_point_of_each_operation(stage: Stage):
    """a handler that raises, sends or forks at every point (or every so many) of each operation"""
    result = Result(0)
    chance = random.Random(stage.seed)
    stage.resources.enter_context(_without_warnings_of_sockets())
    world = World(stage.url)
    stage.resources.callback(world.close)
    # Half of the points on Redis are in redis-py, and each trial asks the server a lot.
    every = stage.trials * (3 if stage.backend == "redis" else 1)
    for kind in HANDLERS:
        # A fork of this process costs a hundred times as much as anything else here.
        stride = every * (8 if kind == "forks" else 1)
        for operation in OPERATIONS:
            first = chance.randrange(stride) + 1
            trials, wrong = each_point(world, operation, kind, stride, first)
            result.trials += trials
            result.violations += [f"{kind}: {one}" for one in wrong]
    return result


@contextmanager
def _without_warnings_of_sockets() -> Iterator[None]:
    """Let the collector close what redis-py drops when it is interrupted while it connects.

    `Connections` counts at the server whether anything stays open.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        yield
        gc.collect()


@scenario("memory", "sqlite", "redis", full=20_000, short=200)
def signals_at_random_moments(stage: Stage):
    """real signals by a timer, whose handlers raise or send, while operations are under way"""
    result = Result(0)
    trials = stage.trials // (4 if stage.backend == "redis" else 1)
    for kind in ("raises", "sends", "sends_here"):
        arguments = [stage.url, kind, str(stage.seed), str(trials)]
        done = subprocess.run(
            [sys.executable, "-m", "chaos.interrupts", *arguments],
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
        if done.returncode:
            ended = f"the process ended with {done.returncode}: {done.stderr[-2000:]}"
            result.violations.append(f"{kind}: {ended}")
            continue
        outcome = json.loads(done.stdout)
        result.trials += outcome["struck"]
        result.violations += [f"{kind}: {one}" for one in outcome["wrong"]]
    return result


@scenario("sqlite", "redis", full=300, short=20)
def worker_interrupted_again_and_again(stage: Stage):
    """a worker with a batch whose signal handler exits at any moment, restarted: all jobs done"""
    round = Interruptions(stage)
    for _ in range(stage.trials):
        round.interrupt()
    round.finish()
    return Result(stage.trials, stage.violations, round.figures())
