"""The workers of one evaluation; they end when it ends, even if it is killed."""

import io
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol, Self

import weakincentives
from weakincentives.error_text import one_line, with_article
from weakincentives.errors import WinkError
from weakincentives.evals import EvalLoop
from weakincentives.runtime import LoopGroup
from weakincentives.runtime.mailbox import InMemoryMailbox, InvalidParameterError
from weakincentives.runtime.mailbox.seam.backend import Backend

from .log_output import configure_logging_of_worker
from .output import fail
from .targets import find, loop_from

__all__ = ["Pool", "WorkersDiedError", "eval_loop_from", "pool_for"]

URL_VARIABLE = "WINK_URL"
GRACE = 10.0
# Workers that cannot start, or samples that keep killing workers, must not run forever.
DEATHS_WITHOUT_NEWS = 5
READY = b"ready"


class WorkersDiedError(WinkError):
    """The workers keep dying."""


class Pool(Protocol):
    """Workers that serve until the ``with`` block ends."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def check(self, done: int, expected: int) -> None:
        """Restart workers that died; raise if that does not help. ``done``: results so far."""
        ...


def eval_loop_from(found: Any, target: str, backend: Backend) -> EvalLoop[Any, Any, Any]:
    """Return the loop that was found; a function is called with the backend to make one."""
    loop = loop_from(found, target, backend)
    if not isinstance(loop, EvalLoop):
        raise InvalidParameterError(
            f"{target!r} is {with_article(type(loop).__name__)}; it must be an EvalLoop"
        )
    return loop


def pool_for(
    target: str,
    loop: EvalLoop[Any, Any, Any],
    workers: int,
    lease: float,
    environment: Mapping[str, str],
) -> Pool:
    """Return a pool of processes, or of threads if the requests are in memory."""
    if isinstance(loop.requests, InMemoryMailbox):
        return ThreadPool(loop, workers, lease)
    kills = 0 if loop.dlq is None else loop.dlq.max_delivery_count
    return ProcessPool(target, workers, lease, environment, kills_per_sample=kills)


class ThreadPool:
    """Workers in this process."""

    def __init__(self, loop: EvalLoop[Any, Any, Any], workers: int, lease: float) -> None:
        self._loop = loop
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(lease,), name=f"eval-{n}", daemon=True)
            for n in range(workers)
        ]

    def check(self, done: int, expected: int) -> None:
        """Raise if a worker has ended."""
        if self._errors:
            raise WorkersDiedError(f"a worker ended: {one_line(self._errors[0])}")

    def _run(self, lease: float) -> None:
        try:
            self._loop.run(visibility_timeout=lease)
        except BaseException as error:  # noqa: BLE001 - check() raises it in the main thread
            self._errors.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.shutdown(timeout=GRACE)


class ProcessPool:
    """Workers in processes of their own.

    Each worker ends when its standard input ends, so it ends with this process even if that is
    killed. Each has a session of its own, so that Ctrl-C reaches only this process, which then lets
    the workers finish. ``kills_per_sample`` is how many workers a sample may kill before it is
    dead-lettered; 0 if it never is.
    """

    def __init__(
        self,
        target: str,
        workers: int,
        lease: float,
        environment: Mapping[str, str],
        *,
        kills_per_sample: int = 0,
    ) -> None:
        self._command = [sys.executable, "-m", __name__, target, str(lease)]
        # It includes the URL, which may hold a password: other users can see a process's arguments.
        self._environment = {**os.environ, **environment}
        self._count = workers
        self._workers: list[subprocess.Popen[bytes]] = []
        self._kills_per_sample = kills_per_sample
        self._deaths = 0
        self._false_starts = 0
        self._done = 0

    @property
    def pids(self) -> list[int]:
        """The ids of the current worker processes."""
        return [worker.pid for worker in self._workers]

    def check(self, done: int, expected: int) -> None:
        """Restart workers that died; raise if they keep dying without new results."""
        if done > self._done:
            self._done, self._deaths, self._false_starts = done, 0, 0
        for index, worker in enumerate(self._workers):
            code = worker.poll()
            if code is None:
                continue
            self._count_death(code, _was_ready(worker), expected - done)
            _close(worker)
            self._workers[index] = self._start()

    def _count_death(self, code: int, was_ready: bool, missing: int) -> None:
        """Raise if there are more deaths than samples that end as dead letters can explain."""
        self._deaths += 1
        self._false_starts = 0 if was_ready else self._false_starts + 1
        patience = DEATHS_WITHOUT_NEWS + self._count
        by_samples = patience + self._kills_per_sample * missing
        if self._deaths <= by_samples and self._false_starts <= patience:
            return
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        advice = (
            ""
            if self._kills_per_sample or not was_ready
            else "; with a dlq, the loop gives up samples that kill their workers"
        )
        raise WorkersDiedError(
            f"{self._deaths} workers died one after the other without a new result, the "
            f"last by {how}; their output on standard error says why{advice}"
        )

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            env=self._environment,
        )

    def __enter__(self) -> Self:
        self._workers = [self._start() for _ in range(self._count)]
        return self

    def __exit__(self, *exc: object) -> None:
        for worker in self._workers:
            _close(worker)
        deadline = time.monotonic() + GRACE
        for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
            for worker in self._workers:
                try:
                    worker.wait(max(deadline - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    end(worker)
            deadline = time.monotonic() + 1
        for worker in self._workers:
            worker.wait()


def _close(worker: subprocess.Popen[bytes]) -> None:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.close()
    worker.stdout.close()


def _was_ready(worker: subprocess.Popen[bytes]) -> bool:
    """Return whether a worker that died had started to serve."""
    assert worker.stdout is not None
    os.set_blocking(
        worker.stdout.fileno(), False
    )  # a child process of the worker may keep the pipe open
    return worker.stdout.read(len(READY)) == READY


def be_worker(target: str, url: str, lease: float) -> int:
    """Serve, and return the exit code; a failure is shown as one safe line."""
    configure_logging_of_worker()
    try:
        serve(target, url, lease)
    except SystemExit as exit:
        if not isinstance(exit.code, str):
            raise
        return fail(exit.code, 1)
    except Exception as error:  # noqa: BLE001 - its traceback is in the log
        return fail(f"a worker crashed: {one_line(error)}", 1)
    return 0


def serve(target: str, url: str, lease: float) -> None:
    """Serve until standard input ends or a signal arrives."""
    with _standard_output() as pipe, weakincentives.connect(url) as backend:
        loop = eval_loop_from(find(target), target, backend)
        group = LoopGroup([loop], shutdown_timeout=GRACE / 2)

        def watch() -> None:
            # Not sys.stdin.read(): it would hold a lock until the end, and Python would abort then.
            while os.read(sys.stdin.fileno(), 1024):
                pass
            group.shutdown()

        threading.Thread(target=watch, name="parent", daemon=True).start()
        try:
            pipe.write(READY)
        except BrokenPipeError:
            return  # the run has ended meanwhile
        pipe.close()
        group.run(visibility_timeout=lease)


def _standard_output() -> io.FileIO:
    """Return standard output for our own use, and let the loop print into nothing."""
    taken = io.FileIO(os.dup(sys.stdout.fileno()), "w")
    with io.FileIO(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    return taken


if __name__ == "__main__":
    sys.exit(be_worker(sys.argv[1], os.environ[URL_VARIABLE], float(sys.argv[2])))
