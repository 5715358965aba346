"""What child processes do; each role is told where, and writes its own history."""

import asyncio
import logging
import os
import random
import re
import signal
import time
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import redis  # noqa: F401 - imported once, in the process from which the others are forked

from chaos.awaited import awaited_mailbox
from chaos.history import Log, now
from chaos.recording import recorded
from testkit.servers.aws import ENVIRONMENT
from testkit.small_disk import mount_small_disk
from weakincentives import connect
from weakincentives.adapters import CallableAdapter
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    LeaseExtenderConfig,
    LoopGroup,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    MainLoopResult,
    Worker,
)
from weakincentives.runtime.mailbox.errors import (
    MailboxError,
    MailboxFullError,
    ReceiptHandleExpiredError,
)
from weakincentives.runtime.worker.worker import WorkerConfig

__all__ = [
    "Outcome",
    "Request",
    "churn",
    "dying",
    "fill_a_disk",
    "fork_and_go_on",
    "group",
    "main_loop",
    "serve",
    "serve_async",
    "statements",
    "telling_the_time",
]

NOW = Backoff(base=0.01, cap=0.01)


def opened(url: str, histories: str, name: str, hook: Any = None, queue: str = "jobs") -> Any:
    """Return a backend and a recorded mailbox on it."""
    if url.startswith("sqs:"):
        os.environ.update(ENVIRONMENT)
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
    """Let no other thread run: a regular expression keeps the interpreter's lock to its end."""
    # Each character doubles the time, until one match has taken that long in one piece.
    length = 12
    while _matched(length) < seconds:
        length += 1


def _matched(length: int) -> float:
    began = time.monotonic()
    re.match(r"(a+)+$", "a" * length + "b")
    return time.monotonic() - began


def serve(url: str, histories: str, name: str, lease: float, batch: int = 1) -> None:
    """A worker as users run it."""
    _backend, box = opened(url, histories, name)
    config = WorkerConfig(batch=batch, backoff=NOW)
    Worker(box, handle, config=config).run(visibility_timeout=lease, wait_time_seconds=1)


async def handle_async(body: Any) -> Any:
    """Do what the body says, without blocking others."""
    await asyncio.sleep(body.get("work", 0) if isinstance(body, dict) else 0)
    return body


def serve_async(
    url: str, histories: str, name: str, lease: float, places: int, awaited: bool
) -> None:
    """A worker whose jobs are tasks of one event loop; its client may be of asyncio too."""
    box = (
        recorded(awaited_mailbox(url, "jobs"), Log(Path(histories), name))
        if awaited
        else opened(url, histories, name)[1]
    )
    config = WorkerConfig(concurrency=places, backoff=NOW)
    Worker(box, handle_async, config=config).run(visibility_timeout=lease, wait_time_seconds=1)


def telling_the_time(url: str, histories: str, name: str, lease: float) -> None:
    """A worker that writes down by how much its wall clock is off, as others see it."""
    log = Log(Path(histories), f"{name}-clock")
    boot = time.time() - now()

    def job(body: Any) -> Any:
        result = handle(body)
        log.mark("off by", f"{time.time() - now() - boot:.0f}")
        return result

    logging.disable(logging.CRITICAL)
    _backend, box = opened(url, histories, name)
    Worker(box, job, config=WorkerConfig(backoff=NOW)).run(
        visibility_timeout=lease, wait_time_seconds=1
    )


class Answering(MainLoop[dict[str, Any], dict[str, Any]]):
    """Does what a request says, and returns it."""


Request = MainLoopRequest[dict[str, Any]]
Outcome = MainLoopResult[dict[str, Any]]


def main_loop(url: str, histories: str, name: str, lease: float, when: str = "") -> None:
    """A MainLoop, to be killed just before or after it acknowledges if it is told when."""
    _backend, box = opened(url, histories, name, partial(strike, when, "ack"))
    config = MainLoopConfig(backoff=NOW, lease_extender=LeaseExtenderConfig(enabled=not when))
    adapter = CallableAdapter(lambda prompt: handle(prompt.params))
    Answering(adapter=adapter, requests=box, config=config).run(
        visibility_timeout=lease, wait_time_seconds=1
    )


def strike(when: str, step: str, moment: str, taken: str) -> None:
    """Die at one moment of one step."""
    if (moment, taken) == (when, step):
        os.kill(os.getpid(), signal.SIGKILL)


def dying(
    url: str,
    histories: str,
    name: str,
    when: str,
    step: str,
    lease: float,
    dead_letters: bool,
) -> None:
    """A worker that is killed just before or after one of its steps."""
    backend, box = opened(url, histories, name, partial(strike, when, step))
    dlq = DLQPolicy(backend.mailbox("dead"), max_delivery_count=1) if dead_letters else None
    config = WorkerConfig(backoff=NOW, lease_extender=LeaseExtenderConfig(enabled=False))
    Worker(box, handle, dlq=dlq, config=config).run(visibility_timeout=lease, wait_time_seconds=1)


def churn(url: str, histories: str, name: str, seed: int, lease: float) -> None:
    """Do everything that can be done to a mailbox, until killed."""
    rng = random.Random(seed)
    _, box = opened(url, histories, name)
    while True:
        try:
            step(box, rng, lease)
        except MailboxError:
            pass


def statements(url: str, histories: str, name: str, last: int) -> None:
    """Take one step of each kind, and be killed at the statement of this number."""
    backend, box = opened(url, histories, name)
    count = 0

    def strike(cursor: Any, sql: str, bindings: Any) -> bool:
        nonlocal count
        count += 1
        if count == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    box.send("the first one opens the file")
    backend._database.file.writer.exec_trace = strike
    box.send_batch(["a", "b", "c"])
    box.send("later", delay_seconds=60)
    box.send("once", message_id=f"{name}-given")
    (reply,) = [box.send_expecting_reply("question")]
    held = box.receive(max_messages=3, visibility_timeout=0.2)
    # What was left by a process before this one may be a question, and a lease may run out.
    done = [message for message in held[1:] if not message.expects_reply()]
    with suppress(ReceiptHandleExpiredError):
        held[0].extend_visibility(0.2)
        held[0].nack()
    box.exchange(done[:1], max_messages=1, visibility_timeout=0.2)
    box.acknowledge_batch(done[1:])
    for message in box.receive(max_messages=10, visibility_timeout=0.2):
        if message.expects_reply():
            with suppress(ReceiptHandleExpiredError):
                message.reply("answer")
    reply.poll()


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


def fork_and_go_on(url: str, histories: str, name: str, rounds: int) -> None:
    """Use a mailbox, fork, and use it on both sides."""
    _backend, box = opened(url, histories, name)
    _rounds(box, 3)
    pid = os.fork()
    if pid == 0:
        try:
            box.store.log = Log(Path(histories), f"{name}-child")
            _rounds(box, rounds)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _rounds(box, rounds)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
        raise SystemExit(3)


def _rounds(box: Any, count: int) -> None:
    for _ in range(count):
        box.send("x")
        for message in box.receive(visibility_timeout=30):
            message.acknowledge()


def fill_a_disk(url: str, histories: str, name: str, directory: str, seed: int) -> None:
    """Fill a small disk of one's own, find that out by a typed error, make room, and go on."""
    report = Path(directory) / f"{name}.report"
    disk = Path(directory) / f"{name}.disk"
    disk.mkdir()
    try:
        mount_small_disk(disk)
    except OSError as error:
        report.write_text(f"a small disk cannot be mounted here: {error}")
        raise SystemExit(77) from error
    rng, problems = random.Random(seed), []
    ballast = disk / "ballast"
    ballast.write_bytes(b"x" * (20 << 20))
    log = Log(Path(histories), name)
    with connect(f"sqlite:///{disk}/box.db") as backend:
        box = recorded(backend.mailbox("jobs"), log)
        sent, held = _send_until_refused(box, rng)
        for message in held:
            try:
                message.acknowledge()  # may need room too: then it says so, and can be repeated
            except MailboxFullError:
                pass
        ballast.unlink()
        got = {message.id for message in held}
        box.acknowledge_batch([message for message in held if not message.is_finalized])
        while messages := box.receive(max_messages=10):  # leasing takes room as well
            got |= {message.id for message in messages}
            box.acknowledge_batch(messages)
        if got != sent:
            problems.append(f"{len(sent - got)} of {len(sent)} lost, {len(got - sent)} new")
        box.send("room again")
    report.write_text("; ".join(problems))


def _send_until_refused(box: Any, rng: random.Random) -> tuple[set[str], list[Any]]:
    sent, held, refused = set(), [], 0
    while refused < 5:
        try:
            sent.add(box.send("x" * rng.randint(10, 40_000)))
            if rng.random() < 0.2:
                held += box.receive(visibility_timeout=60)
        except MailboxFullError:
            refused += 1
    return sent, held
