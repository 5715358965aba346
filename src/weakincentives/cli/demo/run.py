"""The main process of the demo: it starts workers, sends jobs, kills a worker and replays."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

import weakincentives
from weakincentives.cli.output import counted
from weakincentives.cli.queues import JsonOption
from weakincentives.errors import WinkError
from weakincentives.runtime import CompositeResolver, DeadLetter, replay_dead_letters
from weakincentives.runtime.mailbox.seam.backend import Backend

from . import jobs
from .claims import Facts, check
from .jobs import ANSWERS, DEAD_LETTERS, JOBS, Answer, Job, Notes
from .show import Show, print_claims

__all__ = ["register"]

WORKERS = 3
LEASE = 1.5
DEADLINE = 60.0
DOOMED, FLAKY, POISON = 20, 40, 60


class DemoError(WinkError):
    """The demo did not finish."""


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(demo)


def demo(
    count: Annotated[
        int, typer.Option("--jobs", min=100, max=100_000, help="The number of jobs.")
    ] = 300,
    as_json: JsonOption = False,
) -> None:
    """Run workers, kill one, send a job that always fails, and check what is promised."""
    with tempfile.TemporaryDirectory(prefix="wink-demo-") as directory:
        url = f"sqlite:///{Path(directory) / 'demo.db'}"
        with (
            weakincentives.connect(url) as backend,
            Show.of(count, quiet=as_json) as show,
            Pool(url, Path(directory), show) as pool,
        ):
            facts = Demo(backend, pool, show, count).run()
    claims = check(facts)
    print_claims(claims, as_json=as_json)
    if not all(claim.holds for claim in claims):
        raise typer.Exit(1)


class Pool:
    """The worker processes."""

    def __init__(self, url: str, directory: Path, show: Show) -> None:
        self.notes = Notes(directory)
        self._url = url
        self._show = show
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start one more worker."""
        target = f"{jobs.__name__}:{jobs.make_worker.__name__}"
        command = [sys.executable, "-m", "weakincentives.cli", "worker", target]
        command += ["--url", self._url, "--visibility", str(LEASE)]
        with (self.notes.directory / "workers.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(  # noqa: S603 - our own interpreter and module
                    command,
                    env={**os.environ, jobs.NOTES_VARIABLE: str(self.notes.directory)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def kill(self, pid: int) -> None:
        """Kill one worker with SIGKILL, so that it cannot clean up."""
        for process in self._processes:
            if process.pid == pid:
                process.kill()
                process.wait()
                self._processes.remove(process)

    def check(self) -> None:
        """Raise if a worker has ended that the demo did not kill."""
        for process in self._processes:
            if process.poll() is not None:
                log = (self.notes.directory / "workers.log").read_text(errors="replace")
                raise DemoError(f"a worker ended with {process.returncode}: {log[-2000:]}")

    def up(self) -> bool:
        """Whether every worker has started, so that it handles signals."""
        return all(self.notes.read(f"up-{p.pid}") is not None for p in self._processes)

    def stop(self) -> list[int]:
        """Send SIGTERM to all and return their exit codes."""
        for process in self._processes:
            process.terminate()
        codes = [process.wait(timeout=DEADLINE) for process in self._processes]
        self._processes.clear()
        return codes

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


class Demo:
    """One run, from the first job to the last answer."""

    def __init__(self, backend: Backend, pool: Pool, show: Show, count: int) -> None:
        self._jobs = backend.mailbox(JOBS, body_type=Job, reply_type=Answer)
        self._answers = backend.mailbox(ANSWERS, body_type=Answer)
        self._letters = backend.mailbox(DEAD_LETTERS, body_type=DeadLetter[Job])
        self._resolver = CompositeResolver(factory=backend, allow=[ANSWERS])
        self._pool = pool
        self._notes = pool.notes
        self._show = show
        self._sent = list(range(count))
        self._got: list[Answer] = []

    def run(self) -> Facts:
        """Run the demo and return what happened."""
        self._show.say(f"{WORKERS} worker processes start on a SQLite file")
        for _ in range(WORKERS):
            self._pool.start()
        for first in range(0, len(self._sent), 100):
            batch = [Job(n, self._kind(n)) for n in self._sent[first : first + 100]]
            self._jobs.send_batch(batch, reply_to=self._answers)
        self._show.say(f"{len(self._sent)} jobs sent; each expects an answer")

        pid, _ = self._until(lambda: self._notes.attempt(DOOMED, 1), "the doomed job to begin")
        killed = time.monotonic()
        self._pool.kill(pid)
        self._show.say(f"worker {pid} killed with SIGKILL in the middle of job {DOOMED}")
        self._pool.start()
        _, again = self._until(lambda: self._notes.attempt(DOOMED, 2), "its job to be taken over")
        self._show.say(f"job {DOOMED} taken over {(again - killed) * 1000:.0f} ms later")

        letter = self._until(self._dead_letter, "the poison job to become a dead letter")
        self._show.say(
            f"job {POISON} is a dead letter after {counted(letter.delivery_count, 'attempt')}"
        )
        self._notes.write("repaired", "")
        replayed = replay_dead_letters(self._letters, self._jobs, reply_resolver=self._resolver)
        self._show.say(f"repaired, and {counted(replayed, 'dead letter')} replayed")

        self._until(lambda: len({a.number for a in self._got}) == len(self._sent), "all answers")
        self._until(lambda: self._jobs.approximate_count() == 0, "the queue to be empty")
        self._until(self._pool.up, "the last worker to be up")
        return Facts(
            sent=self._sent,
            answers=[*self._got, *self._collect(0)],
            left_in_queue=self._jobs.approximate_count(),
            left_in_dead_letters=self._letters.approximate_count(),
            doomed=DOOMED,
            flaky=FLAKY,
            poison=POISON,
            redelivered_after=again - killed,
            lease=LEASE,
            letter_attempts=letter.delivery_count,
            letter_error=letter.last_error_type,
            replayed=replayed,
            exit_codes=self._pool.stop(),
        )

    @staticmethod
    def _kind(number: int) -> jobs.Kind:
        kinds: dict[int, jobs.Kind] = {DOOMED: "doomed", FLAKY: "flaky", POISON: "poison"}
        return kinds.get(number, "plain")

    def _dead_letter(self) -> DeadLetter[Job] | None:
        for seen in self._letters.peek(1):
            letter: DeadLetter[Job] = seen.body
            return letter
        return None

    def _until(self, condition: Callable[[], Any], what: str) -> Any:
        """Collect answers until the condition is true, and return its value."""
        deadline = time.monotonic() + DEADLINE
        while not (result := condition()):
            if time.monotonic() > deadline:
                raise DemoError(f"gave up after waiting {DEADLINE:.0f} s for {what}")
            self._pool.check()
            self._got += self._collect(0.05)
            self._show.answered(len(self._got))
        return result

    def _collect(self, wait: float) -> Iterator[Answer]:
        messages = self._answers.receive(max_messages=100, wait_time_seconds=wait)
        yield from [message.body for message in messages]
        self._answers.acknowledge_batch(messages)
