"""A worker that is interrupted again and again, and a ledger of its jobs outside of it."""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

from chaos.processes import Child
from chaos.stage import Stage
from testkit.interrupts import sparing_coverage, strike_again_if_lost
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime import Backoff, DLQPolicy, Worker
from weakincentives.runtime.worker.worker import WorkerConfig

__all__ = ["Interruptions", "Ledger", "serve_until_interrupted"]

DEAD = "dead"
LEASE = 0.5
BATCH = 10
WORK = 0.0003
WAITING = 3 * BATCH
LONGEST = 0.06
"""Seconds after which a worker is interrupted at the latest."""


class Interruptions:
    """Starts one worker after the other, interrupts each, and counts what became of its jobs."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._path = stage.directory / "ledger"
        self._ledger = Ledger(self._path)
        stage.resources.callback(self._ledger.close)
        self._box = stage.connection.mailbox("jobs")
        self._dead = stage.connection.mailbox(DEAD)
        self._sent = self._left = self._given_up = 0

    def interrupt(self) -> None:
        """Let a worker run until a signal comes, by a timer of its own or from outside."""
        while self._box.approximate_count() < WAITING:
            self._send()
        after = self._stage.rng.uniform(0.0001, LONGEST)
        if self._stage.rng.random() < 0.5:
            self._end(self._worker(after))
        else:
            done, child = len(self._ledger.ids()), self._worker(0.0)
            eventually(lambda: len(self._ledger.ids()) > done, 120, "a job that is done")
            time.sleep(after)  # to meet it anywhere
            child.terminate()
            self._end(child)
        self._left += self._box.stats().in_flight
        eventually(lambda: self._box.stats().in_flight == 0, 120, "the end of leases")

    def finish(self) -> None:
        """Let a worker do the rest, and judge: every job was done, none was given up."""
        self._send()  # so that it has begun to work when it is ended
        child = self._worker(0.0)
        eventually(lambda: self._box.approximate_count() == 0, 120, "an empty queue")
        child.terminate()
        self._end(child)
        letters = [letter.body["body"] for letter in self._dead.receive(max_messages=1000)]
        done = set(self._ledger.ids())
        jobs = {f"job-{number}" for number in range(self._sent)}
        self._stage.violations += [f"lost: {id}" for id in sorted(jobs - done - set(letters))]
        if self._stage.backend == "redis":
            # A receive that is interrupted may have leased: what becomes of an answer on its way
            # is not known, and counts as a crash. Who meets that twice is given up.
            self._given_up = len(letters)
        else:
            self._stage.violations += [f"innocent, and given up: {id}" for id in letters]

    def figures(self) -> dict[str, float]:
        ids = self._ledger.ids()
        return {
            "jobs": self._sent,
            "done again": len(ids) - len(set(ids)),
            "left with their leases": self._left,
            "given up after two such receives": self._given_up,
        }

    def _send(self) -> None:
        self._box.send(f"job-{self._sent}")
        self._sent += 1

    def _worker(self, after: float) -> Child:
        return self._stage.child(serve_until_interrupted, str(self._path), after)

    def _end(self, child: Child) -> None:
        if not child.join(120):
            self._stage.violations.append("stuck: a worker did not end")
            child.kill()
        elif child.exitcode:
            self._stage.violations.append(f"a worker ended with {child.exitcode}")


class Ledger:
    """Which jobs were done, one line each, written in one piece by whoever does them."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, id: str) -> None:
        os.write(self._file, f"{id}\n".encode())

    def ids(self) -> list[str]:
        return self._path.read_text().splitlines()

    def close(self) -> None:
        os.close(self._file)


def serve_until_interrupted(url: str, _histories: str, _name: str, path: str, after: float) -> None:
    """A worker in the main thread, whose signal handlers exit: by a timer, or by SIGTERM."""
    ledger = Ledger(Path(path))

    def handle(body: Any) -> None:
        ends = time.perf_counter() + WORK
        while time.perf_counter() < ends:
            pass
        ledger.note(body)

    def leave(number: int, frame: FrameType | None) -> None:
        sys.exit(0)

    strike_again_if_lost()
    for number in (signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, sparing_coverage(leave))
    with connect(url) as backend:
        worker: Worker[Any, Any] = Worker(
            backend.mailbox("jobs"),
            handle,
            dlq=DLQPolicy(backend.mailbox(DEAD), max_delivery_count=2),
            config=WorkerConfig(batch=BATCH, backoff=Backoff(base=0.01, cap=0.01)),
        )
        if after:
            signal.setitimer(signal.ITIMER_REAL, after)
        worker.run(visibility_timeout=LEASE, wait_time_seconds=1)
