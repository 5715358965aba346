"""Workers that die, freeze, stall or are told to end."""

from functools import partial

from chaos import roles
from chaos.checkers import deliveries, percentiles
from chaos.crews import (
    LEASE,
    Callers,
    die_at,
    emptied,
    frozen_in_turn,
    judged,
    kept,
    killed_in_turn,
    last_lines,
    written,
)
from chaos.history import now
from chaos.processes import Child
from chaos.stage import Stage, scenario
from testkit.waiting import eventually


@scenario("sqs", full=40, short=2)
@scenario("sqlite", "redis", "redis+asyncio", full=200, short=4)
def worker_kill(stage: Stage):
    """kill -9 of a worker in the middle of a job"""
    killed_in_turn(stage, partial(_worker, stage), stage.mailbox())
    return judged(stage, "kill")


@scenario("sqs", full=10, short=1)
@scenario("sqlite", "redis", "redis+asyncio", full=50, short=2)
def worker_freeze(stage: Stage):
    """SIGSTOP of a worker until its lease is over and its job done by another, then SIGCONT"""
    frozen_in_turn(stage, partial(_worker, stage), stage.mailbox())
    return judged(stage, "stop")


@scenario("sqlite", "redis", full=5, short=1)
def interpreter_stall(stage: Stage):
    """a job that holds the interpreter's lock beyond the lease, so that nothing can extend it"""
    box = stage.mailbox()
    first, second = (stage.child(roles.serve, LEASE / 2) for _ in range(2))
    for _trial in range(stage.trials):
        box.send({"stall": LEASE * 1.2})
    eventually(
        lambda: _delivered_again(stage) >= stage.trials, 120 + 5 * stage.trials, "redelivery"
    )
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
        eventually(lambda child=child: b'"got": [[' in written(stage, child), 120, "a batch")
        idle = stage.child(roles.serve, 0.5)
        eventually(lambda: box.approximate_count() == 0, 120, "an empty queue")
        child.kill()
        idle.kill()
    return kept(stage)


@scenario("sqlite", "redis", full=20, short=1)
def sigterm_in_a_long_poll(stage: Stage):
    """SIGTERM while a group of loops waits for messages"""
    stage.mailbox().send({})
    ends = []
    for _ in range(stage.trials):
        child = stage.child(roles.group, 30.0)
        eventually(lambda child=child: _looked(stage, child), 120, "a long poll")
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
        eventually(lambda child=child: b'"op": "job"' in written(stage, child), 120, "a job")
        ends.append(_terminated(stage, child))
    stage.figures |= {f"end {k}, s": round(v, 3) for k, v in percentiles(ends).items()}
    left = stage.snapshot().ids
    stage.violations += [f"unfinished: {id}" for id in left]
    return stage.verdict()


@scenario("sqs", full=40, short=2)
@scenario("sqlite", "redis", full=100, short=2)
def kill_between_reply_and_ack(stage: Stage):
    """kill -9 between reply and ack, and just after the ack"""
    box, replies = stage.mailbox(), stage.connection.mailbox("replies")
    # A Standard queue does not know a repeated reply again: there, callers wait instead.
    callers = Callers(stage, box, replies, ways=["wait"] if stage.backend == "sqs" else ["mailbox"])
    callers.send_batch([{} for _ in range(stage.trials)])  # each dies on one
    die_at(stage, stage.trials, lambda when: stage.child(roles.dying, when, "ack", 0.3, False))
    survivor = stage.child(roles.serve, LEASE)
    eventually(lambda: box.approximate_count() == 0, 120, "an empty queue")
    survivor.kill()
    callers.check()
    return stage.verdict()


@scenario("sqs", full=40, short=2)
@scenario("sqlite", "redis", full=100, short=2)
def kill_between_dead_letter_and_ack(stage: Stage):
    """kill -9 between dead letter and ack, and just after the ack"""
    box = stage.mailbox()
    ids = [box.send({"fail": "always"}) for _ in range(stage.trials)]
    die_at(stage, stage.trials, lambda when: stage.child(roles.dying, when, "ack", 0.3, True))
    stage.child(roles.dying, "never", "ack", LEASE, True)  # one that lives finishes what is left
    eventually(lambda: box.approximate_count() == 0, 120, "the last dead letter")
    dead = [letter["message_id"] for letter in emptied(stage.connection.mailbox("dead"))]
    stage.violations += [f"lost: {id} has no dead letter" for id in set(ids) - set(dead)]
    # A Standard queue knows no id again: there, each kill may leave one more.
    most = 2 * len(ids) if stage.backend == "sqs" else len(ids)
    if len(dead) > most:
        stage.violations.append(f"{len(dead)} dead letters of {len(ids)} messages")
    stage.figures["dead letters"] = len(dead)
    return stage.verdict(dead=dead)


def _worker(stage: Stage) -> Child:
    if stage.awaited:
        return stage.child(roles.serve_async, LEASE, 1, True)
    return stage.child(roles.serve, LEASE)


def _looked(stage: Stage, child: Child) -> bool:
    """Whether the last thing that a worker wrote is that it looks, with nothing to be found."""
    looking = b'"op": "receive"' in last_lines(stage, child, 1)
    return looking and not stage.connection.mailbox("jobs").stats().pending


def _terminated(stage: Stage, child: Child) -> float:
    began = now()
    child.terminate()
    if not child.join(120):
        stage.violations.append(f"{child.name} did not end within 10 s of SIGTERM")
    elif child.exitcode != 0:
        stage.violations.append(f"{child.name} ended with {child.exitcode} after SIGTERM")
    return now() - began


def _delivered_again(stage: Stage) -> int:
    return sum(len(history) > 1 for history in deliveries(stage.history()).values())
