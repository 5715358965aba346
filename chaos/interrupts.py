"""Interrupts: a signal may come at any moment, and its handler may raise, send, or fork.

An operation is interrupted at one point after the other (or, by a real timer, at random ones), and
then: has it happened or not, is every send that returned still there, can others go on?
"""

import functools
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NamedTuple

import apsw

from chaos.connections import Connections
from chaos.points import Points
from testkit.interrupts import sparing_coverage
from weakincentives import connect
from weakincentives.runtime.mailbox import MailboxConnectionError, ReentrantStepError

__all__ = ["HANDLERS", "OPERATIONS", "Interrupted", "World", "by_signals", "each_point"]

Change = tuple[int, int, int]
"""By how many the pending, the leased and the delayed messages change."""

NOTHING: Change = (0, 0, 0)
PATIENCE = 60.0


class Interrupted(KeyboardInterrupt):
    """What a handler raises."""


class Operation(NamedTuple):
    """Something to interrupt."""

    name: str
    prepare: Callable[["World"], Any]
    act: Callable[["World", Any], Any]
    change: Change = NOTHING
    halves: tuple[Change, ...] = ()
    """What may also have happened, where acknowledging and leasing are not one commit."""


class World:
    """The queues of one backend, and others who use them."""

    def __init__(self, url: str) -> None:
        self.backend = connect(url)
        self.box: Any = self.backend.mailbox("jobs")
        self.alerts: Any = self.backend.mailbox("alerts")
        self.path = url.partition("sqlite:///")[2].partition("?")[0]
        self.connections = Connections(url, self.backend) if url.startswith("redis:") else None
        self.is_shared = not url.startswith("memory:")
        """Whether what a forked child sends arrives here."""
        self.sent = self.sent_here = 0
        """How many sends of handlers have returned, elsewhere and into the queue at work."""
        self.box.send("a queue that exists")
        self.alerts.send("a queue that exists")
        self.clear()

    def clear(self) -> None:
        self.box.purge()
        self.alerts.purge()
        self.sent = self.sent_here = 0

    def counts(self) -> Change:
        stats = self.box.stats()
        return stats.pending, stats.in_flight, stats.delayed

    def close(self) -> None:
        self.backend.close()
        if self.connections is not None:
            self.connections.close()

    def leased(self, *, expecting: bool = False) -> Any:
        """Return a message that was received."""
        if expecting:
            self.box.send_expecting_reply("question", reply_timeout=60)
        else:
            self.box.send("job")
        (message,) = self.box.receive(visibility_timeout=60)
        return message

    def trouble(self) -> Iterator[str]:
        """Say what keeps others from going on."""
        if self.connections is not None:
            yield from self.connections.trouble()
        if self.path:
            other = apsw.Connection(self.path)
            try:
                other.execute("BEGIN IMMEDIATE")
                other.execute("ROLLBACK")
            except apsw.BusyError:
                yield "the file stays locked for other processes"
            finally:
                other.close()
        done = threading.Event()

        def go_on() -> None:
            self.alerts.stats()
            self.box.stats()
            done.set()

        threading.Thread(target=go_on, daemon=True).start()
        if not done.wait(PATIENCE):
            yield "other threads cannot go on"


def _question_answered(world: World) -> Any:
    reply = world.box.send_expecting_reply("question", reply_timeout=60)
    (message,) = world.box.receive(visibility_timeout=60)
    message.reply("answer")
    return reply


def _two_of_which_one_is_leased(world: World) -> Any:
    message = world.leased()
    world.box.send("next")
    return message


def _with_reply_to(world: World) -> Any:
    world.box.send("job", reply_to=world.box)
    (message,) = world.box.receive(visibility_timeout=60)
    return message


def _once(world: World, _: object = None) -> None:
    world.box.send("x", message_id=f"once-{time.monotonic_ns()}")


OPERATIONS = (
    Operation("send", lambda w: None, lambda w, _: w.box.send("x"), (1, 0, 0)),
    Operation("send once", _once, _once, (1, 0, 0)),
    Operation(
        "send later", lambda w: None, lambda w, _: w.box.send("x", delay_seconds=60), (0, 0, 1)
    ),
    Operation("send batch", lambda w: None, lambda w, _: w.box.send_batch(list("abc")), (3, 0, 0)),
    Operation("ask", lambda w: None, lambda w, _: w.box.send_expecting_reply("x"), (1, 0, 0)),
    Operation("receive", lambda w: w.box.send("x"), lambda w, _: w.box.receive(), (-1, 1, 0)),
    Operation(
        "receive many",
        lambda w: w.box.send_batch(list("abc")),
        lambda w, _: w.box.receive(max_messages=3),
        (-3, 3, 0),
        ((-1, 1, 0), (-2, 2, 0)),
    ),
    Operation(
        "wait for a message",
        lambda w: None,
        lambda w, _: w.box.receive(wait_time_seconds=0.002),
    ),
    Operation("acknowledge", World.leased, lambda w, m: m.acknowledge(), (0, -1, 0)),
    Operation("nack", World.leased, lambda w, m: m.nack(), (1, -1, 0)),
    Operation("nack later", World.leased, lambda w, m: m.nack(visibility_timeout=60), (0, -1, 1)),
    Operation("extend", World.leased, lambda w, m: m.extend_visibility(60)),
    Operation(
        "reply",
        lambda w: w.leased(expecting=True),
        lambda w, m: m.reply("answer"),
        (0, -1, 0),
    ),
    Operation("reply to", _with_reply_to, lambda w, m: m.reply("answer"), (1, 0, 0)),
    Operation(
        "exchange",
        _two_of_which_one_is_leased,
        lambda w, m: w.box.exchange([m]),
        (-1, 0, 0),
        ((0, -1, 0),),
    ),
    Operation("wait", _question_answered, lambda w, r: r.wait(timeout=5)),
    Operation(
        "purge", lambda w: w.box.send_batch(list("abc")), lambda w, _: w.box.purge(), (-3, 0, 0)
    ),
    Operation(
        "delete",
        lambda w: w.box.send_batch(list("abc")),
        lambda w, _: w.backend.delete("jobs", force=True),
        (-3, 0, 0),
    ),
    Operation("stats", lambda w: w.box.send("x"), lambda w, _: w.box.stats()),
    Operation("peek", lambda w: w.box.send("x"), lambda w, _: w.box.peek()),
)


def raises(world: World) -> None:
    """Do as Ctrl-C does, or a handler of SIGTERM that calls sys.exit."""
    raise Interrupted


def sends(world: World) -> None:
    """Send a message, or be told that it cannot be done here."""
    try:
        world.alerts.send("interrupted")
    except ReentrantStepError:
        return
    world.sent += 1


def sends_here(world: World) -> None:
    """Send a message to the very queue at work, or be told that it cannot be done here."""
    try:
        world.box.send("interrupted", message_id=f"interrupted-{time.monotonic_ns()}")
    except ReentrantStepError:
        return
    world.sent_here += 1


def forks(world: World) -> None:
    """Fork; the child tries to send too, and is gone."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            world.alerts.send("from the child")
            code = 2
        except (ReentrantStepError, MailboxConnectionError):
            code = 3  # forked inside a step
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (2, 3), f"the child ended with {code}"
    world.sent += code == 2 and world.is_shared


HANDLERS = {one.__name__: one for one in (raises, sends, sends_here, forks)}


def each_point(
    world: World, operation: Operation, kind: str, stride: int = 1, first: int = 1
) -> tuple[int, list[str]]:
    """Interrupt an operation at every ``stride``-th point; return how often, and what was wrong."""
    raising = kind == "raises"
    for _ in range(2):  # the first time, more is done than later
        world.clear()
        prepared = operation.prepare(world)
        with Points(raising) as points:
            operation.act(world, prepared)
    wrong: list[str] = []
    struck = 0
    for at in range(first, points.count + 1, stride):
        world.clear()
        strike = Points(raising, at, functools.partial(HANDLERS[kind], world))

        def interrupt(prepared: Any, strike: Points = strike) -> Any:
            with strike:
                return operation.act(world, prepared)

        wrong += [f"point {at}: {one}" for one in trial(world, operation, interrupt)]
        struck += strike.has_struck
    world.clear()
    return struck, wrong


def trial(world: World, operation: Operation, interrupt: Callable[[Any], Any]) -> Iterator[str]:
    """Interrupt an operation once, and say what is wrong then."""
    prepared = operation.prepare(world)
    before = world.counts()
    returned = False
    try:
        interrupt(prepared)
        returned = True
    except Interrupted:
        pass
    except Exception as error:
        yield f"{operation.name} raised {type(error).__name__}: {error}"
        return
    yield from world.trouble()
    changes = {NOTHING, operation.change, *operation.halves}
    if returned:
        changes = {operation.change}
    after = world.counts()
    change = tuple(now - then for now, then in zip(after, before, strict=True))
    if world.sent_here:
        # It may have come before the operation took its look, or after.
        pending, leased, delayed = change
        change = (pending - 1, leased, delayed)
        if operation.name == "wait for a message":
            changes.add((-1, 1, 0))
        if operation.name in ("purge", "delete"):
            changes.add((-4, 0, 0))
    if change not in changes:
        yield f"{operation.name} {'returned' if returned else 'was interrupted'}: {change}"
    there = world.alerts.stats().total
    if there != world.sent:
        yield f"{world.sent} sends of the handler returned, {there} are there"


@contextmanager
def _timer(handler: Callable[[], None]) -> Iterator[Callable[[float], None]]:
    """Give out a function that has the handler called once, that many seconds from now."""
    armed = False

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            handler()

    def arm(seconds: float) -> None:
        nonlocal armed
        armed = seconds > 0
        signal.setitimer(signal.ITIMER_REAL, seconds)

    former = signal.signal(signal.SIGALRM, sparing_coverage(strike))
    try:
        yield arm
    finally:
        arm(0)
        signal.signal(signal.SIGALRM, former)


def by_signals(world: World, kind: str, seed: int, trials: int) -> tuple[int, list[str]]:
    """Interrupt operations by real signals at random; return how many were, and what was wrong."""
    chance, struck, wrong = random.Random(seed), 0, []
    took = dict.fromkeys((one.name for one in OPERATIONS), 0.001)

    def handler() -> None:
        nonlocal struck
        struck += 1
        HANDLERS[kind](world)

    with _timer(handler) as arm:
        for number in range(trials):
            operation = OPERATIONS[number % len(OPERATIONS)]
            world.clear()

            def interrupt(prepared: Any, operation: Operation = operation) -> None:
                began = time.perf_counter()
                arm(chance.uniform(0.00001, took[operation.name]))
                try:
                    operation.act(world, prepared)
                finally:
                    arm(0)
                took[operation.name] = 0.9 * took[operation.name] + 0.1 * min(
                    time.perf_counter() - began, 0.05
                )

            wrong += list(trial(world, operation, interrupt))
    return struck, wrong


def main() -> None:
    """``python -m chaos.interrupts URL HANDLER SEED TRIALS``: by signals, in its own process."""
    url, kind, seed, trials = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    world = World(url)
    struck, wrong = by_signals(world, kind, seed, trials)
    world.close()
    print(json.dumps({"struck": struck, "wrong": wrong[:20], "count": len(wrong)}))


if __name__ == "__main__":
    main()
