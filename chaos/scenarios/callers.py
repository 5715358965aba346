"""Callers who wait while workers are killed, jobs cancelled and dead letters replayed."""

import random
import threading
import time
from collections.abc import Callable

from chaos.answering import DEAD, JOBS, answer, fail_and_die
from chaos.answers import Asked, answered, cancels
from chaos.asking import (
    KEEP,
    LEASE,
    LONG,
    PATIENCE,
    Callers,
    Crew,
    Watch,
    body,
    heard,
    look_at,
    result,
)
from chaos.crews import die_at
from chaos.readers import Readers
from chaos.stage import Stage, scenario
from testkit.ports import HOST
from testkit.proxy import Proxy
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime import replay_dead_letters

CREW = 5
PACE = 0.15
"""Seconds between two kills at most: in between, jobs must get done."""
CALLERS = 12
CANCELLERS = 6
TOGETHER = 10


@scenario("sqlite", "redis", full=1000, short=8)
def callers_under_kills(stage: Stage):
    """kill -9 of workers and replays anywhere, answers lost: one answer for each sending"""
    proxy = _between(stage)
    crew = Crew(stage, CREW, replays=True)
    backend = stage.resources.enter_context(connect(stage.url))
    callers = Callers(stage, backend, CALLERS, gives_up=0.15, fails=0.1)
    for _ in range(stage.trials):
        time.sleep(stage.rng.uniform(0, PACE))  # to meet them anywhere
        if proxy is not None:
            proxy.drop_reply()
        crew.kill_one()
    callers.finish(crew)
    return result(stage, **{"lost answers": 0 if proxy is None else proxy.cuts})


@scenario("sqlite", "redis", full=5000, short=60)
def cancels_against_completions(stage: Stage):
    """a cancel against the end of its job: True and never an answer, or False and the answer"""
    proxy = _between(stage)
    crew = Crew(stage, CREW)
    backend = stage.resources.enter_context(connect(stage.url))
    done, numbers, counts = [], iter(range(stage.trials)), {True: 0, False: 0}
    box, usual = backend.mailbox(JOBS), 0.03

    def cancel() -> None:
        nonlocal usual
        for number in numbers:
            if number % 50 == 25:
                crew.kill_one()
            if proxy is not None and number % 5 == 0:
                proxy.drop_reply()
            request = body(number, gives_up=0.1, is_replayed=False)
            began = time.monotonic()
            reply = box.send_expecting_reply(request, reply_timeout=LONG, keep=KEEP)
            if number % 10 == 0:  # to know when it is close
                heard(reply, number, 60)
                usual = min(time.monotonic() - began, 0.2)
            else:
                time.sleep(random.uniform(0, 1.5 * usual))
            if number % 3 == 0:
                was_cancelled = box.cancel(reply.message_id)
            else:
                handle = reply if number % 3 == 1 else backend.reply(reply.id)
                was_cancelled = handle.cancel()
            done.append((number, reply.id, was_cancelled, heard(reply, number, 60)))

    _in_threads(stage, CANCELLERS, cancel)
    crew.finish()
    for number, id, was_cancelled, told in done:
        counts[was_cancelled] += 1
        stage.violations += cancels(number, was_cancelled, told, look_at(stage.connection, id))
    cut = 0 if proxy is None else proxy.cuts
    return result(stage, cancelled=counts[True], answered=counts[False], **{"lost answers": cut})


@scenario("sqlite", "redis", full=200, short=3)
def replays_against_redeliveries(stage: Stage):
    """a dead letter replayed while the original comes again: the replay's answer is the only one"""
    letters = 0
    for first in range(0, stage.trials, TOGETHER):
        letters += _replay_and_redeliver(stage, range(first, min(first + TOGETHER, stage.trials)))
    if letters != stage.trials:
        stage.violations.append(f"{letters} dead letters of {stage.trials} messages")
    return result(stage)


@scenario("sqlite", "redis", full=200, short=8)
def readers_of_parts(stage: Stage):
    """readers of parts that reconnect while workers are killed and frozen: each part once"""
    proxy = _between(stage)
    crew = Crew(stage, CREW, replays=True)
    backend = stage.resources.enter_context(connect(stage.url))
    readers = Readers(stage, backend)
    readers.begun.wait(PATIENCE)  # a fault before that meets nobody
    for trial in range(stage.trials):
        time.sleep(stage.rng.uniform(0, PACE))
        if proxy is not None:
            proxy.drop_reply()
        if trial % 4 == 3:
            crew.freeze_one()
        else:
            crew.kill_one()
    readers.finish(crew)
    return result(stage, **{"lost answers": 0 if proxy is None else proxy.cuts})


def _between(stage: Stage) -> Proxy | None:
    """Let clients reach a server through a proxy that can lose answers; looks go past it."""
    stage.connection.mailbox(JOBS)
    if stage.backend != "redis":
        return None
    proxy = stage.resources.enter_context(Proxy(stage.server.port))
    stage.reach(f"redis://{HOST}:{proxy.port}/0")
    return proxy


def _in_threads(stage: Stage, count: int, act: Callable[[], None]) -> None:
    """Run something in several threads; an error in one is a violation."""

    def guarded() -> None:
        try:
            act()
        except Exception as error:
            stage.violations.append(f"a caller met {error!r}")

    threads = [threading.Thread(target=guarded, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _replay_and_redeliver(stage: Stage, numbers: range) -> int:
    """Have each of these given up by a worker that dies over it; return how many were replayed."""
    box, dead = stage.connection.mailbox(JOBS), stage.connection.mailbox(DEAD)
    watch, replayed = Watch(stage.connection), 0
    replies = {
        number: box.send_expecting_reply(body(number, work=0.2), reply_timeout=LONG, keep=KEEP)
        for number in numbers
    }
    originals = {number: reply.message_id for number, reply in replies.items()}
    for reply in replies.values():
        watch.add(reply.id)
    die_at(stage, len(numbers), lambda when: stage.child(fail_and_die, when, LEASE))
    # Some are replayed before anybody receives the originals again, the others when it so happens.
    replayed += replay_dead_letters(dead, box, limit=(len(numbers) + 1) // 2)
    if numbers.start // TOGETHER % 2 == 0:
        time.sleep(LEASE)  # then the originals come beside their replays
    survivors = [stage.child(answer, kind, LEASE, TOGETHER, 1) for kind in ("threads", "loop")]

    def is_done() -> bool:
        nonlocal replayed
        time.sleep(stage.rng.uniform(0, LEASE / 2))
        replayed += replay_dead_letters(dead, box)
        return box.approximate_count() == dead.approximate_count() == 0

    eventually(is_done, PATIENCE, "the end of all jobs")
    for child in survivors:
        child.kill()
    watch.stop()
    for number, reply in replies.items():
        looks, told = watch.looks_at(reply.id), heard(reply, number, 5)
        stage.violations += answered(Asked(number, True), looks, [] if told is None else [told])
        if looks[-1].owner.endswith(f"/{originals[number]}"):
            stage.violations.append(f"answers: request {number}: not that of its replay")
    return replayed
