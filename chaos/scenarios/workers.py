"""Workers that die, freeze, stall or are told to end."""

import signal
import time

from chaos import roles
from chaos.checkers import deliveries, percentiles, recoveries
from chaos.history import now
from chaos.processes import Child
from chaos.stage import Stage, eventually, scenario

LEASE = 1.0
WORK = 0.1
CREW = 4
PACE = 0.25
"""Seconds between two kills: somebody must be there to take over."""
ALLOWED = LEASE + 1.0
"""Recovery: the promise is the lease and a second."""


@scenario("sqs", full=40, short=2)
@scenario("sqlite", "redis", "redis+asyncio", full=200, short=4)
def worker_kill(stage: Stage):
    """kill -9 of a worker in the middle of a job"""
    crew, box = _crew(stage), stage.mailbox()
    for _trial in range(stage.trials):
        victim = crew.pop(0)
        _await_job(stage, victim, feeding=box)
        stage.log.mark("kill", victim.name)
        victim.kill()
        crew.append(_worker(stage))
        time.sleep(PACE)
    _finish(stage, crew)
    return _judged(stage, "kill")


@scenario("sqlite", "redis", "redis+asyncio", full=50, short=2)
def worker_freeze(stage: Stage):
    """SIGSTOP of a worker until its lease is over and its job done by another, then SIGCONT"""
    crew, box = _crew(stage), stage.mailbox()
    for trial in range(stage.trials):
        victim = crew[trial % len(crew)]
        _await_job(stage, victim, feeding=box)
        stage.log.mark("stop", victim.name)
        victim.stop()
        time.sleep(LEASE * 1.5)
        victim.resume()
    _finish(stage, crew)
    return _judged(stage, "stop")


@scenario("sqlite", "redis", full=5, short=1)
def interpreter_stall(stage: Stage):
    """a job that holds the interpreter's lock beyond the lease, so that nothing can extend it"""
    box = stage.mailbox()
    first, second = (stage.child(roles.serve, LEASE / 2) for _ in range(2))
    for _trial in range(stage.trials):
        box.send({"stall": LEASE * 1.2})
    eventually(lambda: _delivered_again(stage) >= stage.trials, 30 + 5 * stage.trials, "redelivery")
    first.kill()
    second.kill()
    stage.drain(lease=5)
    return stage.verdict()


@scenario("sqlite", "redis", full=5, short=1)
def batch_waiting_its_turn(stage: Stage):
    """a batch that takes three times the lease: what waits its turn is kept for its worker"""
    box = stage.mailbox()
    for _ in range(stage.trials):
        box.send_batch([{"work": 0.4} for _ in range(4)])
        child = stage.child(roles.serve, 0.5, 4)
        eventually(lambda child=child: b'"got": [[' in _written(stage, child), 20, "a batch")
        idle = stage.child(roles.serve, 0.5)
        eventually(lambda: box.approximate_count() == 0, 30, "an empty queue")
        child.kill()
        idle.kill()
    again = sum(len(history) > 1 for history in deliveries(stage.history()).values())
    if again:
        stage.violations.append(f"{again} messages were delivered again while their worker lived")
    return stage.verdict()


@scenario("sqlite", "redis", full=20, short=1)
def sigterm_in_a_long_poll(stage: Stage):
    """SIGTERM while a group of loops waits for messages"""
    stage.mailbox().send({})
    ends = []
    for _ in range(stage.trials):
        child = stage.child(roles.group, 30.0)
        eventually(lambda child=child: _looked(stage, child), 20, "a long poll")
        ends.append(_terminated(stage, child))
    stage.figures |= {f"end {k}, s": round(v, 3) for k, v in percentiles(ends).items()}
    return stage.verdict()


@scenario("sqlite", "redis", full=20, short=1)
def sigterm_in_a_job(stage: Stage):
    """SIGTERM in the middle of a job: it is finished and acknowledged"""
    box, ends = stage.mailbox(), []
    for _ in range(stage.trials):
        box.send({"work": 0.3})
        child = stage.child(roles.group, 30.0)
        eventually(lambda child=child: b'"op": "job"' in _written(stage, child), 20, "a job")
        ends.append(_terminated(stage, child))
    stage.figures |= {f"end {k}, s": round(v, 3) for k, v in percentiles(ends).items()}
    left = stage.snapshot().ids
    stage.violations += [f"unfinished: {id}" for id in left]
    return stage.verdict()


@scenario("sqs", full=40, short=2)
@scenario("sqlite", "redis", full=100, short=2)
def kill_between_reply_and_ack(stage: Stage):
    """kill -9 between reply and ack, and just after the ack"""
    box = stage.mailbox()
    if stage.backend == "sqs":  # a Standard queue would keep a repeated reply: callers wait instead
        replies = [box.send_expecting_reply({}) for _ in range(stage.trials)]
    else:
        to = stage.connection.mailbox("replies")
        ids = [box.send({}, reply_to=to) for _ in range(stage.trials)]
    _die_at(stage, stage.trials, "ack", dead_letters=False)  # each dies on one
    _serve_the_rest(stage, box)
    if stage.backend == "sqs":
        for reply in replies:
            if reply.wait(timeout=10) != {} or reply.wait(timeout=1) != {}:
                stage.violations.append("replies: a caller got another value")
    elif sorted(got := _ids_in(to)) != sorted(set(got)) or len(got) != len(ids):
        stage.violations.append(f"replies: {len(got)} to {len(ids)} requests")
    return stage.verdict()


@scenario("sqs", full=40, short=2)
@scenario("sqlite", "redis", full=100, short=2)
def kill_between_dead_letter_and_ack(stage: Stage):
    """kill -9 between dead letter and ack, and just after the ack"""
    box = stage.mailbox()
    ids = [box.send({"fail": "always"}) for _ in range(stage.trials)]
    _die_at(stage, stage.trials, "ack", dead_letters=True)
    stage.child(roles.dying, "never", "ack", LEASE, True)  # one that lives finishes what is left
    eventually(lambda: box.approximate_count() == 0, 30, "the last dead letter")
    letters = stage.drain("dead")
    dead = [letter["message_id"] for letter in letters]
    stage.violations += [f"lost: {id} has no dead letter" for id in set(ids) - set(dead)]
    # A Standard queue knows no id again: there, each kill may leave one more.
    most = 2 * len(ids) if stage.backend == "sqs" else len(ids)
    if len(dead) > most:
        stage.violations.append(f"{len(dead)} dead letters of {len(ids)} messages")
    stage.figures["dead letters"] = len(dead)
    return stage.verdict(dead=dead)


def _crew(stage: Stage) -> list[Child]:
    return [_worker(stage) for _ in range(CREW)]


def _worker(stage: Stage) -> Child:
    return stage.child(roles.serve_awaited if stage.awaited else roles.serve, LEASE)


def _await_job(stage: Stage, child: Child, *, feeding) -> None:
    """Wait until a worker holds a message; all are kept busy meanwhile, with little waiting."""

    def holds() -> bool:
        missing = CREW + 1 - feeding.stats().pending
        if missing > 0:
            feeding.send_batch([{"work": WORK} for _ in range(missing)])
        return b'"got": [[' in _last_lines(stage, child, 2)  # with it, it may acknowledge

    eventually(holds, 30, f"{child.name} to hold a message")


def _looked(stage: Stage, child: Child) -> bool:
    """Whether the last thing that a worker wrote is that it looks, with nothing to be found."""
    looking = b'"op": "receive"' in _last_lines(stage, child, 1)
    return looking and not stage.connection.mailbox("jobs").stats().pending


def _written(stage: Stage, child: Child) -> bytes:
    path = stage.histories / f"{child.name}.jsonl"
    return path.read_bytes() if path.exists() else b""


def _last_lines(stage: Stage, child: Child, count: int) -> bytes:
    return b"".join(_written(stage, child).split(b"\n")[-1 - count :])


def _terminated(stage: Stage, child: Child) -> float:
    began = now()
    child.terminate()
    if not child.join(10):
        stage.violations.append(f"{child.name} did not end within 10 s of SIGTERM")
    elif child.exitcode != 0:
        stage.violations.append(f"{child.name} ended with {child.exitcode} after SIGTERM")
    return now() - began


def _delivered_again(stage: Stage) -> int:
    return sum(len(history) > 1 for history in deliveries(stage.history()).values())


def _die_at(stage: Stage, count: int, step: str, *, dead_letters: bool) -> None:
    """Let so many workers run, a few at a time; each is killed before or after its step."""
    living: list[Child] = []
    for number in range(count + CREW):
        if number >= CREW:
            child = living.pop(0)
            if not child.join(30) or child.exitcode != -signal.SIGKILL:
                stage.violations.append(f"{child.name} was not killed at its step")
                child.kill()
        if number < count:
            when = ("before", "after")[number % 2]
            living.append(stage.child(roles.dying, when, step, 0.3, dead_letters))
        elif not living:
            return


def _ids_in(box) -> list[str]:
    got = []
    while messages := box.receive(max_messages=100):
        got += [message.id for message in messages]
        box.acknowledge_batch(messages)
    return got


def _serve_the_rest(stage: Stage, box) -> None:
    child = stage.child(roles.serve, LEASE)
    eventually(lambda: box.approximate_count() == 0, 60, "an empty queue")
    child.kill()


def _finish(stage: Stage, crew: list[Child]) -> None:
    box = stage.mailbox()
    eventually(lambda: box.approximate_count() == 0, 60, "an empty queue")
    for child in crew:
        child.kill()


def _judged(stage: Stage, fault: str):
    times = recoveries(stage.history(), fault)
    late = [f"recovery took {seconds:.2f} s" for seconds in times if seconds > 3 * ALLOWED]
    stage.violations += late
    if times and percentiles(times)["p99"] > ALLOWED:
        stage.notes.append("recovery p99 above lease + 1 s")
    stage.figures["recoveries"] = len(times)
    stage.figures["lease, s"] = LEASE
    return stage.verdict(recovery=fault)
