"""Much of one kind in a queue: what an operation costs beside an empty one."""

import time
from typing import Any

from chaos.many import KINDS, costs, fill, seconds
from chaos.stage import Result, Stage, scenario
from weakincentives.runtime.mailbox.testing import driven

SLOWEST = 0.2
"""Seconds that no operation may take at the median, also on a busy machine."""


@scenario("memory", "sqlite", "redis", full=100_000, short=2000)
def many(stage: Stage):
    """much of each kind: delayed, nacked, leased, expired, undone, remembered, unanswered"""
    wrong: list[str] = []
    figures: dict[str, float] = {}
    slowest: dict[str, float] = {}
    for kind in KINDS:
        store, replies = _queue(stage, kind)
        fill(store, replies, kind, stage.trials)
        _settle(store, looks=20 if stage.full else 2)
        for name, cost in costs(store, replies, seconds).items():
            slowest[name] = max(cost, slowest.get(name, 0.0))
            if cost > SLOWEST:
                wrong.append(f"slow: {name} takes {cost * 1000:.1f} ms with many {kind}")
    for name, cost in slowest.items():
        figures[f"{name}, ms"] = round(cost * 1000, 2)
    return Result(stage.trials, wrong, figures)


def _queue(stage: Stage, kind: str) -> tuple[Any, Any]:
    box = stage.connection.mailbox(f"many-{kind}")
    return box.store, box._replies().table


def _settle(store: Any, looks: int) -> None:
    """Look a few times, as consumers do: what lasts is put where it is found quickly."""
    for _ in range(looks):
        driven(store.lease(1, 3600))
        time.sleep(0.1)
