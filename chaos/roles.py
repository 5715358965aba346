"""What child processes do; each role is told where, and writes its own history."""

import logging
import os
import random
import re
import signal
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import redis  # noqa: F401 - imported once, in the process from which the others are forked

import weakincentives.contrib.mailbox.redis.mailbox  # noqa: F401
import weakincentives.contrib.mailbox.sqlite.mailbox  # noqa: F401
from chaos.history import Log
from chaos.recording import recorded
from weakincentives import connect
from weakincentives.runtime import Backoff, DLQPolicy, LeaseExtenderConfig, LoopGroup, Worker
from weakincentives.runtime.mailbox.errors import MailboxError
from weakincentives.runtime.worker import WorkerConfig

__all__ = ["churn", "dying", "group", "serve"]

logging.disable(logging.CRITICAL)
NOW = Backoff(base=0.01, cap=0.01)


def opened(url: str, histories: str, name: str, hook: Any = None, queue: str = "jobs") -> Any:
    """Return a backend and a recorded mailbox on it."""
    backend = connect(url)
    return backend, recorded(backend.mailbox(queue), Log(Path(histories), name), hook)


def handle(body: Any) -> Any:
    """Do what the body says."""
    if isinstance(body, dict):
        time.sleep(body.get("work", 0))
        if body.get("stall"):
            hold_the_interpreter(body["stall"])
        if body.get("fail"):
            raise ValueError(body["fail"])
    return body


def hold_the_interpreter(seconds: float) -> None:
    """Let no other thread run: a regular expression keeps the interpreter's lock."""
    length, took = 18, 0.0
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        if took and took * 2 < left:
            length += 1
        began = time.monotonic()
        re.match(r"(a+)+$", "a" * length + "b")
        took = time.monotonic() - began


def serve(
    url: str, histories: str, name: str, lease: float, batch: int = 1, plant: str = ""
) -> None:
    """A worker as users run it."""
    if plant:
        from chaos.planted import plant as sow

        sow(plant)
    backend, box = opened(url, histories, name)
    config = WorkerConfig(batch=batch, backoff=NOW)
    Worker(box, handle, config=config).run(visibility_timeout=lease, wait_time_seconds=1)


def dying(
    url: str,
    histories: str,
    name: str,
    when: str,
    step: str,
    lease: float,
    dead_letters: bool,
    plant: str = "",
) -> None:
    """A worker that is killed just before or after one of its steps."""
    if plant:
        from chaos.planted import plant as sow

        sow(plant)

    def strike(moment: str, taken: str) -> None:
        if (moment, taken) == (when, step):
            os.kill(os.getpid(), signal.SIGKILL)

    backend, box = opened(url, histories, name, strike)
    dlq = DLQPolicy(backend.mailbox("dead"), max_delivery_count=1) if dead_letters else None
    config = WorkerConfig(backoff=NOW, lease_extender=LeaseExtenderConfig(enabled=False))
    Worker(box, handle, dlq=dlq, config=config).run(visibility_timeout=lease, wait_time_seconds=1)


def churn(url: str, histories: str, name: str, seed: int, lease: float, plant: str = "") -> None:
    """Do everything that can be done to a mailbox, until killed."""
    if plant:
        from chaos.planted import plant as sow

        sow(plant)
    rng = random.Random(seed)
    _, box = opened(url, histories, name)
    while True:
        try:
            step(box, rng, lease)
        except MailboxError:
            pass


def step(box: Any, rng: random.Random, lease: float) -> None:
    """One of the steps that a client takes, or a few."""
    if rng.random() < 0.5:
        if rng.random() < 0.5:
            box.send("x")
        else:
            box.send_batch(["x"] * rng.randint(1, 5), delay_seconds=rng.choice((0, 0, 0.05)))
        return
    for message in box.receive(max_messages=rng.randint(1, 3), visibility_timeout=lease):
        draw = rng.random()
        if draw < 0.2:
            message.extend_visibility(lease)
        if draw < 0.6:
            message.acknowledge()
        elif draw < 0.8:
            message.nack(visibility_timeout=rng.choice((0, 0.02)))


def group(url: str, histories: str, name: str, lease: float) -> None:
    """A group of loops that a signal stops."""
    with ExitStack() as stack:
        backend, box = opened(url, histories, name)
        stack.enter_context(backend)

        def job(body: Any) -> None:
            box.store.log.mark("job")
            handle(body)

        LoopGroup([Worker(box, job, config=WorkerConfig(backoff=NOW))]).run(
            visibility_timeout=lease, wait_time_seconds=20
        )
