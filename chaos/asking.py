"""Callers who ask, wait and cancel, and somebody who looks at their replies all the time."""

import itertools
import random
import threading
import time
from collections import defaultdict
from collections.abc import Collection
from typing import Any

from chaos.answering import DEAD, JOBS, KINDS, answer, is_replayed, replay
from chaos.answers import FINAL, Answer, Asked, Told, answered
from chaos.processes import Child
from chaos.stage import Result, Stage
from testkit.waiting import eventually
from weakincentives.runtime import replay_dead_letters
from weakincentives.runtime.mailbox.errors import (
    ReplyCancelledError,
    ReplyFailedError,
    ReplyTimeoutError,
)
from weakincentives.runtime.mailbox.testing import driven

__all__ = [
    "KEEP",
    "LEASE",
    "LONG",
    "PATIENCE",
    "Callers",
    "Crew",
    "Watch",
    "body",
    "heard",
    "look_at",
    "result",
]

LEASE = 0.6
PLACES = 2
KEEP = 3600.0
LONG = 1200.0
"""Seconds that a caller waits who must be answered before."""
PATIENCE = 120.0
SHORT = 0.4
"""Seconds that a caller waits who may be too early."""


def body(number: int, **facts: Any) -> dict[str, Any]:
    """Return a request; without more facts its job is quick and does not fail."""
    usual = {"work": 0.005, "parts": 0, "gives_up": 0.0, "fails": 0.0, "is_replayed": True}
    return {"number": number, **usual, **facts}


def look_at(backend: Any, id: str) -> Answer:
    """Read what a reply says, in one step."""
    replies = backend.reply(id)._replies
    row = driven(replies.table.get(id))
    if row is None:
        return Answer("gone")
    state, detail = str(row.state), ""
    if state == "resolved":
        detail = replies.value(row)["run"]
    elif state == "failed":
        facts = replies.sealer.open(row.payload).attributes
        detail = f"{facts.get('dead_letter_id')} {facts['reference']}"
    return Answer(state, row.owner or "", detail)


def heard(reply: Any, number: int, timeout: float) -> Told | None:
    """Wait for a reply and return what its caller is told; None if nothing has come yet."""
    try:
        value = reply.wait(timeout=timeout)
    except ReplyFailedError as error:
        return Told("failed", f"{error.dead_letter_id} {error.reference}")
    except ReplyCancelledError:
        return Told("cancelled")
    except ReplyTimeoutError as error:
        return Told("expired") if "has expired" in str(error) else None
    if value["number"] != number:
        return Told("resolved", f"the answer to request {value['number']}")
    return Told("resolved", value["run"])


def result(stage: Stage, **figures: float) -> Result:
    """Return what came of a run that has a ledger instead of histories."""
    return Result(stage.trials, stage.violations, {**stage.figures, **figures}, stage.notes)


class Crew:
    """Workers of all kinds and one who replays, killed one after the other and replaced."""

    def __init__(self, stage: Stage, size: int, *, replays: bool = False) -> None:
        self._stage = stage
        self._kinds = KINDS if stage.backend in ("redis", "cluster") else KINDS[:2]
        self._hired = 0
        self.living = [self._hire() for _ in range(size)]
        self._replayer = self._hire_replayer() if replays else None

    def kill_one(self) -> None:
        """SIGKILL, wherever it may be; now and then it is the one who replays."""
        rng = self._stage.rng
        if self._replayer is not None and rng.random() < 0.1:
            self._replayer.kill()
            self._replayer = self._hire_replayer()
        else:
            self.living.pop(rng.randrange(len(self.living))).kill()
            self.living.append(self._hire())

    def freeze_one(self) -> None:
        """SIGSTOP until its leases are over and its jobs another's, then SIGCONT."""
        victim = self._stage.rng.choice(self.living)
        victim.stop()
        time.sleep(LEASE * 1.5)
        victim.resume()

    def finish(self) -> None:
        """Replay what is to be replayed, and let everything be done."""
        if self._replayer is not None:
            self._replayer.kill()
        backend = self._stage.connection
        box, dead = backend.mailbox(JOBS), backend.mailbox(DEAD)

        def is_done() -> bool:
            return (
                box.approximate_count() == 0
                and replay_dead_letters(dead, box, predicate=is_replayed) == 0
                and dead.stats().in_flight == 0  # what a replay held that was killed
                and box.approximate_count() == 0
            )

        eventually(is_done, PATIENCE, "the end of all jobs")
        for child in self.living:
            child.kill()

    def _hire(self) -> Child:
        self._hired += 1
        kind = self._kinds[self._hired % len(self._kinds)]
        return self._stage.child(answer, kind, LEASE, PLACES)

    def _hire_replayer(self) -> Child:
        return self._stage.child(replay, 2 * LEASE)


class Watch:
    """Looks at every reply until its last answer, and writes down each change."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend
        self._looks: dict[str, list[Answer]] = defaultdict(list)
        self._open: dict[str, Collection[str]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def add(self, id: str, last: Collection[str] = FINAL) -> None:
        """Look at this reply until it has one of the last states."""
        with self._lock:
            self._open[id] = last

    def looks_at(self, id: str) -> list[Answer]:
        """Look for the last time, and return all that was seen."""
        self._look(id)
        return self._looks[id]

    def stop(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        while not self._over.wait(0.002):
            with self._lock:
                some = list(self._open.items())
            for id, last in some:
                if self._look(id).state in last:
                    with self._lock:
                        del self._open[id]

    def _look(self, id: str) -> Answer:
        seen, looks = look_at(self._backend, id), self._looks[id]
        if not looks or looks[-1] != seen:
            looks.append(seen)
        return seen


class Callers:
    """Threads that ask and do what callers do with their replies, until they are told to stop."""

    def __init__(self, stage: Stage, backend: Any, threads: int, **facts: Any) -> None:
        self._stage = stage
        self._box = backend.mailbox(JOBS)
        self._facts = facts
        self._watch = Watch(stage.connection)
        self._asked: dict[str, Asked] = {}
        self._originals: dict[str, str] = {}
        self._told: dict[str, list[Told]] = defaultdict(list)
        self._numbers = itertools.count()
        self._over = threading.Event()
        self._errors: list[str] = []
        self._threads = [
            threading.Thread(target=self._guarded, daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def finish(self, crew: Crew) -> None:
        """Stop asking, let all be done, and judge every reply."""
        self._over.set()
        for thread in self._threads:
            thread.join(PATIENCE)
        crew.finish()
        self._watch.stop()
        wrong, ends = self._errors, defaultdict(int)
        replays = 0
        for id, asked in self._asked.items():
            looks = self._watch.looks_at(id)
            wrong += answered(asked, looks, self._told[id])
            ends[looks[-1].state] += 1
            replays += len({look.owner for look in looks} - {self._originals[id]})
        self._stage.violations += wrong
        self._stage.figures |= {"callers": len(self._asked), "replays seen": replays}
        self._stage.figures |= {f"{state} in the end": ends[state] for state in sorted(ends)}

    def _guarded(self) -> None:
        try:
            while not self._over.is_set():
                self._ask()
        except Exception as error:
            self._errors.append(f"a caller met {error!r}")

    def _ask(self) -> None:
        number, draw = next(self._numbers), random.random()
        asked = Asked(number, number % 3 > 0, may_expire=draw > 0.9)
        request = body(number, is_replayed=asked.is_replayed, **self._facts)
        reply = self._box.send_expecting_reply(
            request, reply_timeout=SHORT if asked.may_expire else LONG, keep=KEEP
        )
        self._asked[reply.id] = asked
        self._originals[reply.id] = f"{JOBS}/{reply.message_id}"
        # What is not replayed does not change any more: the last look will tell.
        self._watch.add(reply.id, FINAL if asked.is_replayed else (*FINAL, "failed", "expired"))
        if draw < 0.1:
            time.sleep(random.uniform(0, 0.03))
            if reply.cancel():
                self._told[reply.id].append(Told("cancelled"))
        self._hear(reply, asked)

    def _hear(self, reply: Any, asked: Asked) -> None:
        """Wait until the last answer; a failure may be followed by the answer of a replay.

        What comes after the end of asking is judged without those who have not heard it.
        """
        is_last = False
        while not is_last:
            is_last = self._over.is_set()
            told = heard(reply, asked.number, 1.0)
            if told is None:
                continue
            if told not in self._told[reply.id]:
                self._told[reply.id].append(told)
            if told.state != "failed" or not asked.is_replayed:
                return
            self._over.wait(0.02)
