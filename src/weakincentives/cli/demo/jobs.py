"""The jobs of the demo, and the worker that handles them."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from weakincentives.runtime import Backoff, DLQPolicy, Worker, WorkerConfig
from weakincentives.runtime.mailbox.seam.backend import Backend

__all__ = ["ATTEMPTS", "DEAD_LETTERS", "JOBS", "Answer", "Job", "Notes", "make_worker"]

JOBS, DEAD_LETTERS, ANSWERS = "jobs", "jobs-dlq", "answers"
ATTEMPTS = 3
"""The number of deliveries after which a failing job is given up."""

NOTES_VARIABLE = "WINK_DEMO_NOTES"

Kind = Literal["plain", "doomed", "flaky", "poison"]


@dataclass(frozen=True, slots=True)
class Job:
    """A number to square, and what goes wrong with it."""

    number: int
    kind: Kind = "plain"


@dataclass(frozen=True, slots=True)
class Answer:
    """A square, and the attempt that produced it."""

    number: int
    square: int
    attempt: int


class Notes:
    """Notes that the processes leave for each other in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def attempts(self, number: int) -> int:
        """Return how often a job was started."""
        return len(list(self.directory.glob(f"attempt-{number}-*")))

    def begin(self, number: int) -> int:
        """Write a note of a new attempt, with its process and time; return its number."""
        attempt = self.attempts(number) + 1
        self.write(f"attempt-{number}-{attempt}", f"{os.getpid()} {time.monotonic()}")
        return attempt

    def attempt(self, number: int, attempt: int) -> tuple[int, float] | None:
        """Return the process and time of an attempt, or None if it was not started."""
        text = self.read(f"attempt-{number}-{attempt}")
        if text is None:
            return None
        process, moment = text.split()
        return int(process), float(moment)

    def write(self, name: str, text: str) -> None:
        """Write a note atomically."""
        unfinished = self.directory / f".{name}"
        unfinished.write_text(text)
        unfinished.replace(self.directory / name)

    def read(self, name: str) -> str | None:
        """Return a note, or None if there is none."""
        path = self.directory / name
        return path.read_text() if path.exists() else None


def make_worker(backend: Backend) -> Worker[Job, Answer]:
    """Return a worker for the demo's queue; ``wink worker`` calls this in each process."""
    notes = Notes(Path(os.environ[NOTES_VARIABLE]))
    notes.write(f"up-{os.getpid()}", "")
    jobs = backend.mailbox(JOBS, body_type=Job, reply_type=Answer)
    dead_letters = backend.mailbox(DEAD_LETTERS)
    return Worker(
        jobs,
        _handler(notes),
        dlq=DLQPolicy(mailbox=dead_letters, max_delivery_count=ATTEMPTS),
        config=WorkerConfig(backoff=Backoff(base=0.2, cap=0.5)),
    )


def _handler(notes: Notes) -> Callable[[Job], Answer]:
    def square(job: Job) -> Answer:
        attempt = notes.begin(job.number)
        if job.kind == "doomed" and attempt == 1:
            time.sleep(3600)  # until the process is killed
        if job.kind == "flaky" and attempt < ATTEMPTS:
            raise ConnectionError(f"attempt {attempt} at {job.number} failed, as it should")
        if job.kind == "poison" and notes.read("repaired") is None:
            raise ValueError(f"{job.number} cannot be squared before the repair")
        time.sleep(0.002)
        return Answer(job.number, job.number**2, attempt)

    return square
