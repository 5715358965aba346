"""Workers that are killed or frozen in turn, and callers who wait for what they were to do."""

import signal
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Literal

from chaos.checkers import deliveries, percentiles, recoveries
from chaos.processes import Child
from chaos.stage import Result, Stage
from testkit.waiting import eventually
from weakincentives.runtime.mailbox.errors import MailboxError

__all__ = [
    "ALLOWED",
    "CREW",
    "LEASE",
    "Callers",
    "die_at",
    "emptied",
    "frozen_in_turn",
    "judged",
    "kept",
    "killed_in_turn",
    "last_lines",
    "written",
]

LEASE = 1.0
WORK = 0.1
CREW = 4
PACE = 0.25
"""Seconds between two kills: somebody must be there to take over."""
ALLOWED = LEASE + 1.0
"""Recovery: the promise is the lease and a second."""

Way = Literal["wait", "mailbox"]


def killed_in_turn(stage: Stage, hire: Callable[[], Child], feeding: Any) -> None:
    """Kill one worker after the other in the middle of a job, each replaced by a new one."""
    crew = [hire() for _ in range(CREW)]
    for _ in range(stage.trials):
        victim = crew.pop(0)
        _await_job(stage, victim, feeding)
        stage.log.mark("kill", victim.name)
        victim.kill()
        crew.append(hire())
        time.sleep(PACE)
    _finish(stage, crew)


def frozen_in_turn(stage: Stage, hire: Callable[[], Child], feeding: Any) -> None:
    """Stop one worker after the other in the middle of a job, until its lease is long over."""
    crew = [hire() for _ in range(CREW)]
    for trial in range(stage.trials):
        victim = crew[trial % len(crew)]
        _await_job(stage, victim, feeding)
        stage.log.mark("stop", victim.name)
        victim.stop()
        time.sleep(LEASE * 1.5)
        victim.resume()
    _finish(stage, crew)


def die_at(stage: Stage, count: int, hire: Callable[[str], Child]) -> None:
    """Let so many workers run, a few at a time; each kills itself before or after its step."""
    living: list[Child] = []
    for number in range(count + CREW):
        if number >= CREW:
            child = living.pop(0)
            if not child.join(120) or child.exitcode != -signal.SIGKILL:
                stage.violations.append(f"{child.name} was not killed at its step")
                child.kill()
        if number < count:
            living.append(hire(("before", "after")[number % 2]))
        elif not living:
            return


def kept(stage: Stage) -> Result:
    """Judge a run in which no worker lost a lease: nothing was delivered twice."""
    again = sum(len(history) > 1 for history in deliveries(stage.history()).values())
    if again:
        stage.violations.append(f"{again} messages were delivered again while their worker lived")
    return stage.verdict()


def judged(stage: Stage, fault: str) -> Result:
    """Judge how soon others took over, and all the rest."""
    times = recoveries(stage.history(), fault)
    late = [f"recovery took {seconds:.2f} s" for seconds in times if seconds > 10 * ALLOWED]
    stage.violations += late
    if times and percentiles(times)["p99"] > ALLOWED:
        stage.notes.append("recovery p99 above lease + 1 s")
    stage.figures["recoveries"] = len(times)
    stage.figures["lease, s"] = LEASE
    return stage.verdict(recovery=fault)


class Callers:
    """Those who ask, in turn by waiting for the reply and by naming a mailbox for it.

    The handler returns what it was given: so each reply tells which request it belongs to.
    """

    def __init__(
        self,
        stage: Stage,
        box: Any,
        replies: Any = None,
        *,
        asked: Callable[[dict[str, Any]], Any] = lambda body: body,
        told: Callable[[Any], dict[str, Any]] = lambda reply: reply,
        ways: Sequence[Way] = ("wait", "mailbox"),
    ) -> None:
        self._stage = stage
        self._box = box
        self._replies = replies
        self._asked, self._told = asked, told
        self._ways = ways
        self._waiting: dict[int, Any] = {}
        self._posted: list[int] = []
        self.stats = box.stats

    def send_batch(self, bodies: Sequence[dict[str, Any]]) -> None:
        """Ask for each of these."""
        for body in bodies:
            number = len(self._waiting) + len(self._posted)
            request = self._asked({**body, "number": number})
            if self._ways[number % len(self._ways)] == "wait":
                self._waiting[number] = self._box.send_expecting_reply(request)
            else:
                self._box.send(request, reply_to=self._replies)
                self._posted.append(number)

    def check(self) -> None:
        """See that every caller has exactly one reply, the right one."""
        wrong: list[str] = []
        for number, reply in self._waiting.items():
            try:
                value = reply.wait(timeout=10)
            except MailboxError as error:
                wrong.append(f"replies: request {number} has none: {error!r}")
                continue
            if self._told(value)["number"] != number or reply.wait(timeout=1) != value:
                wrong.append(f"replies: request {number} has {value}")
        posted = emptied(self._replies) if self._posted else []
        counts = Counter(self._told(body)["number"] for body in posted)
        for number in self._posted:
            if counts[number] != 1:
                wrong.append(f"replies: {counts[number]} to request {number}")
        asked = len(self._waiting) + len(self._posted)
        self._stage.figures["callers with one reply"] = asked - len(wrong)
        self._stage.violations += wrong


def emptied(box: Any) -> list[Any]:
    """Receive and acknowledge all that there is, on nobody's record, and return the bodies."""
    bodies, limits = [], box.limits
    while messages := box.receive(
        max_messages=min(100, limits.max_batch), wait_time_seconds=limits.rounded(0.2)
    ):
        bodies += [message.body for message in messages]
        box.acknowledge_batch(messages)
    return bodies


def written(stage: Stage, child: Child) -> bytes:
    """Return the history of a child."""
    path = stage.histories / f"{child.name}.jsonl"
    return path.read_bytes() if path.exists() else b""


def last_lines(stage: Stage, child: Child, count: int) -> bytes:
    """Return what a child wrote last."""
    return b"".join(written(stage, child).split(b"\n")[-1 - count :])


def _await_job(stage: Stage, child: Child, feeding: Any) -> None:
    """Wait until a worker holds a message; all are kept busy meanwhile, with little waiting."""

    def holds() -> bool:
        missing = CREW + 1 - feeding.stats().pending
        if missing > 0:
            feeding.send_batch([{"work": WORK} for _ in range(missing)])
        return b'"got": [[' in last_lines(stage, child, 2)  # with it, it may acknowledge

    eventually(holds, 120, f"{child.name} to hold a message")


def _finish(stage: Stage, crew: list[Child]) -> None:
    box = stage.mailbox()
    eventually(lambda: box.approximate_count() == 0, 120, "an empty queue")
    for child in crew:
        child.kill()
