"""Clocks that jump: the server's, a client's, and that of a whole process."""

import threading
import time
from typing import Any

from chaos import roles
from chaos.crews import kept
from chaos.faketime import MovedClock, faketime_library
from chaos.history import now
from chaos.load import Load
from chaos.stage import NotRun, Stage, scenario
from testkit.servers import Standalone
from testkit.waiting import eventually
from weakincentives.clock import SystemClock
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError

HOUR = 3600
LONG = 0.5 * HOUR
"""A lease or a delay that no trial outlives, and every jump does."""
SOON = 15.0


@scenario("redis", full=10, short=1)
def server_clock_jumps(stage: Stage):
    """the server's clock set forward and back by hours: leases, delays and long polls under load"""
    clock = _moved_clock(stage)
    binary = clock.server()
    if binary is None:
        raise NotRun("libfaketime works with none of the servers that are here")
    stage.use(Standalone(binary))
    load = Load(stage, lease=2.0)
    for trial in range(stage.trials):
        hours = stage.rng.randint(1, 12)
        _forward(stage, clock, f"forward-{trial}", hours)
        _back(stage, clock, f"back-{trial}", hours)
    if stage.full:
        _ends(stage, clock)
    _move(stage, clock, 24 * HOUR)  # beyond every lease that was taken in the hours ahead
    load.stop()
    stage.violations += load.errors
    stage.drain(lease=30)
    return stage.verdict(jumps=True)


def _forward(stage: Stage, clock: MovedClock, queue: str, hours: int) -> None:
    """Leases and delays are over at once, for those who wait too; old handles are worth nothing."""
    box = stage.mailbox(queue)
    held = _held(box)
    delayed = box.send("delayed", delay_seconds=LONG)
    waiting = Poll(stage.mailbox(queue))
    _move(stage, clock, clock.seconds + hours * HOUR)
    began = now()
    found = waiting.result()
    eventually(lambda: found.extend(_look(box)) or len(found) >= 2, SOON, "both after the jump")
    _at_most(stage, "until a jump forward was noticed, s", now() - began)
    if {message.id for message in found} != {held.id, delayed}:
        stage.violations.append(f"after a jump forward came {found}")
    try:
        held.acknowledge()
        stage.violations.append(f"stale: ack of {held.id} accepted after a jump beyond its lease")
    except ReceiptHandleExpiredError:
        pass
    _settle(found)


def _back(stage: Stage, clock: MovedClock, queue: str, hours: int) -> None:
    """Nothing comes early or is lost, handles hold, and a long poll still hears of a message."""
    box = stage.mailbox(queue)
    held = _held(box)
    delayed = box.send("delayed", delay_seconds=LONG)
    waiting = Poll(stage.mailbox(queue))
    _move(stage, clock, clock.seconds - hours * HOUR)
    began = now()
    fresh = box.send("fresh")
    found = waiting.result()
    _at_most(stage, "until a send was heard of after a jump back, s", now() - began)
    if [message.id for message in found] != [fresh]:
        stage.violations.append(f"after a jump back came {found}, not {fresh}")
    held.extend_visibility(LONG)
    _settle([held, *found])
    if early := box.receive(max_messages=10):
        stage.violations.append(f"after a jump back came {early} before its time")
    _move(stage, clock, clock.seconds + hours * HOUR + HOUR)
    late = box.receive(max_messages=10, visibility_timeout=LONG, wait_time_seconds=SOON)
    if [message.id for message in late] != [delayed]:
        stage.violations.append(f"lost: {delayed}, delayed before a jump back, {late} came")
    _settle(late)
    _move(stage, clock, clock.seconds - HOUR)


def _ends(stage: Stage, clock: MovedClock) -> None:
    """A long poll that finds nothing ends, although the server's own timer has hours to go."""
    waiting = Poll(stage.mailbox("ends"), wait=2.0)
    began = now()
    _move(stage, clock, clock.seconds - 12 * HOUR)
    waiting.result()
    stage.figures["end of a poll of 2 s across a jump back, s"] = round(now() - began, 3)


@scenario("sqlite", "redis", full=12, short=2)
def process_clock_jumps(stage: Stage):
    """the wall clock of a worker's process set forward and back by hours: it keeps its leases"""
    lease, box, clock = 0.8, stage.mailbox(), _moved_clock(stage)
    stage.child(roles.serve, lease).kill()  # the first one takes its time to start
    box.send({})
    stage.program(roles.telling_the_time, lease, environment=clock.environment)
    eventually(lambda: box.approximate_count() == 0, 120, "the first job")
    for trial in range(stage.trials):
        hours = stage.rng.randint(1, 12) * (-1) ** trial
        box.send({"work": 2.5 * lease})
        eventually(lambda: box.stats().in_flight == 1, 120, "a job")
        clock.set(hours * HOUR)
        other = stage.child(roles.serve, lease)  # takes what the first one loses
        eventually(lambda: box.approximate_count() == 0, 120, "its end")
        other.kill()
        off = _off_by(stage)[-1]
        if abs(off - hours * HOUR) > 60:
            raise NotRun(f"the worker's clock is off by {off:g} s: it does not follow libfaketime")
    return kept(stage)


@scenario("sqlite", "redis", full=10, short=2)
def client_clock_jumps(stage: Stage):
    """the wall clock of a client set forward and back by an hour: no lease moves"""
    usual = SystemClock.time
    box = stage.mailbox()
    load = Load(stage, lease=2.0)
    try:
        for trial in range(stage.trials):
            jump = 3600 if trial % 2 == 0 else -3600
            held = box.receive(visibility_timeout=5, wait_time_seconds=2)
            SystemClock.time = staticmethod(lambda jump=jump: usual() + jump)
            time.sleep(0.2)
            for message in held:
                message.extend_visibility(5)
                message.acknowledge()
    finally:
        SystemClock.time = staticmethod(usual)
    load.stop()
    stage.violations += load.errors
    stage.drain()
    return stage.verdict(ordered=True)


class Poll:
    """A long poll in a thread of its own, if not told otherwise for longer than any trial takes."""

    def __init__(self, box: Any, wait: float = SOON) -> None:
        self._box = box
        self._seconds = wait
        self._found: list[Any] = []
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()
        time.sleep(0.05)  # it waits at the server, most likely; if not, it is asked a bit later

    def result(self) -> list[Any]:
        self._thread.join(3 * SOON)
        assert not self._thread.is_alive(), "a long poll hangs"
        return self._found

    def _wait(self) -> None:
        self._found = self._box.receive(visibility_timeout=LONG, wait_time_seconds=self._seconds)


def _moved_clock(stage: Stage) -> MovedClock:
    library = faketime_library()
    if isinstance(library, str):
        raise NotRun(library)
    return MovedClock(stage.directory, library)


def _move(stage: Stage, clock: MovedClock, seconds: int) -> None:
    """Move the server's clock, and see that it is moved."""
    clock.set(seconds)
    off = float(stage.server.command("TIME")[0]) - time.time()
    if abs(off - seconds) > 60:
        raise NotRun("the server's clock does not follow libfaketime")


def _held(box: Any) -> Any:
    box.send("held")
    (message,) = box.receive(visibility_timeout=LONG)
    return message


def _look(box: Any) -> list[Any]:
    return box.receive(max_messages=10, visibility_timeout=LONG)


def _settle(messages: list[Any]) -> None:
    for message in messages:
        message.acknowledge()


def _at_most(stage: Stage, name: str, seconds: float) -> None:
    stage.figures[name] = max(stage.figures.get(name, 0.0), round(seconds, 3))


def _off_by(stage: Stage) -> list[float]:
    """By how much the worker's clock was off at its jobs."""
    return [float(op.id) for op in stage.history() if op.op == "off by"]
