"""Child processes that answer callers, and replay dead letters, until they are killed."""

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from typing import Any

from chaos.awaited import awaited_mailbox
from chaos.roles import NOW, opened, strike
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime import (
    AsyncJob,
    DeadLetter,
    DLQPolicy,
    Job,
    LeaseExtenderConfig,
    RetryAfter,
    Worker,
    WorkerConfig,
    replay_dead_letters,
)
from weakincentives.runtime.dead_letters import replay as replaying

__all__ = ["DEAD", "JOBS", "KINDS", "Hopeless", "answer", "fail_and_die", "is_replayed", "replay"]

JOBS, DEAD = "jobs", "dead"
KINDS = ("threads", "loop", "asyncio")
"""Workers with plain handlers, with async ones, and with a client of redis.asyncio."""
CRASHES = 4
"""A message that was in the hands of so many workers when they died is given up."""


class Hopeless(Exception):
    """A failure after which a job is given up at once."""


def answer(
    url: str,
    _histories: str,
    name: str,
    kind: str,
    lease: float,
    places: int,
    most: int = CRASHES,
) -> None:
    """A worker that does what each request says, and fails now and then."""
    if kind == "asyncio":
        box, dead = awaited_mailbox(url, JOBS), awaited_mailbox(url, DEAD)
    else:
        backend = connect(url)
        box, dead = backend.mailbox(JOBS), backend.mailbox(DEAD)
    dlq = DLQPolicy(dead, max_delivery_count=most, include_errors=frozenset({Hopeless}))
    config = WorkerConfig(concurrency=places, backoff=NOW)
    handle = _plain(name) if kind == "threads" else _async(name)
    Worker(box, handle, dlq=dlq, config=config).run(visibility_timeout=lease, wait_time_seconds=1)


def _plain(name: str) -> Any:
    runs = _runs(name)

    def handle(body: dict[str, Any], job: Job) -> Any:
        run = next(runs)
        for part, pause in _moves(body, run):
            if part is not None:
                job.emit(part)
            time.sleep(pause)
        return _ended(body, job.id, job.attempts, run)

    return handle


def _async(name: str) -> Any:
    runs = _runs(name)

    async def handle(body: dict[str, Any], job: AsyncJob) -> Any:
        run = next(runs)
        for part, pause in _moves(body, run):
            if part is not None:
                await job.emit(part)
            await asyncio.sleep(pause)
        return _ended(body, job.id, job.attempts, run)

    return handle


def _runs(name: str) -> Iterator[str]:
    return (f"{name}.{number}" for number in itertools.count())


def _moves(body: dict[str, Any], run: str) -> Iterator[tuple[dict[str, Any] | None, float]]:
    """Yield what a handler emits, if anything, and how long it pauses after it."""
    parts = body["parts"]
    pause = body["work"] / max(parts, 1)
    for place in range(parts):
        yield {"run": run, "place": place}, pause * random.uniform(0.2, 1.8)
    if not parts:
        yield None, pause * random.uniform(0.2, 1.8)


def _ended(body: dict[str, Any], id: str, attempts: int, run: str) -> dict[str, Any]:
    """Return a handler's value, or raise what it ends with instead."""
    draw = random.random()
    if draw < body["gives_up"]:
        raise Hopeless
    if draw < body["gives_up"] + body["fails"]:
        raise RetryAfter(0.01) if attempts % 2 else ValueError("try again")
    return {"number": body["number"], "message": id, "run": run}


def is_replayed(letter: DeadLetter[Any]) -> bool:
    """Whether a letter is among those to be replayed; the others stay where they are."""
    return bool(letter.body["is_replayed"])


def replay(url: str, _histories: str, _name: str, lease: float) -> None:
    """Replay dead letters as they come, until killed."""
    replaying.LEASE = lease  # so that the next one need not wait long for what this one held
    with connect(url) as backend:
        box, dead = backend.mailbox(JOBS), backend.mailbox(DEAD)
        while True:
            eventually(lambda: dead.stats().pending, 3600, "dead letters")
            replay_dead_letters(dead, box, predicate=is_replayed)
            time.sleep(0.05)


def fail_and_die(url: str, histories: str, name: str, when: str, lease: float) -> None:
    """A worker that gives a job up and is killed just before or after it acknowledges it."""
    backend, box = opened(url, histories, name, lambda *step: strike(when, "ack", *step))
    config = WorkerConfig(backoff=NOW, lease_extender=LeaseExtenderConfig(enabled=False))
    dlq = DLQPolicy(backend.mailbox(DEAD), max_delivery_count=1)
    Worker(box, _give_up, dlq=dlq, config=config).run(visibility_timeout=lease, wait_time_seconds=1)


def _give_up(body: Any) -> None:
    raise Hopeless
