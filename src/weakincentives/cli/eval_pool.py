"""The workers of one evaluation: processes that end with it, however it ends."""

import os
import subprocess
import sys
import threading
import time
from types import TracebackType
from typing import Any, Protocol, Self

import weakincentives
from weakincentives.cli.worker import load
from weakincentives.errors import WinkError
from weakincentives.evals import EvalLoop
from weakincentives.runtime import LoopGroup
from weakincentives.runtime.mailbox import InMemoryMailbox, InvalidParameterError
from weakincentives.runtime.mailbox.backend import Backend

__all__ = ["Pool", "WorkersDiedError", "load_loop", "pool_for"]

URL_VARIABLE = "WINK_URL"
GRACE = 10.0
# A sample that kills its worker must not keep the machine busy starting new ones.
DEATHS_WITHOUT_NEWS = 5


class WorkersDiedError(WinkError):
    """The workers keep dying."""


class Pool(Protocol):
    """Workers that serve until the block ends."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def check(self, done: int) -> None:
        """Start those again that died; raise if that does not help. ``done``: results so far."""
        ...


def load_loop(target: str, backend: Backend) -> EvalLoop[Any, Any, Any]:
    """Return the loop that ``module:attribute`` is, or that it makes from a backend."""
    found = load(target, backend)
    if not isinstance(found, EvalLoop):
        raise InvalidParameterError(
            f"{target!r} is a {type(found).__name__}; it must be an EvalLoop"
        )
    return found


def pool_for(
    target: str, loop: EvalLoop[Any, Any, Any], url: str, workers: int, lease: float
) -> Pool:
    """Return processes, or threads where the requests are in the memory of this process."""
    if isinstance(loop.requests, InMemoryMailbox):
        return ThreadPool(loop, workers, lease)
    return ProcessPool(target, url, workers, lease)


class ThreadPool:
    """Workers in this process."""

    def __init__(self, loop: EvalLoop[Any, Any, Any], workers: int, lease: float) -> None:
        self._loop = loop
        self._errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(lease,), name=f"eval-{n}", daemon=True)
            for n in range(workers)
        ]

    def check(self, done: int) -> None:
        """Raise what ended a worker."""
        if self._errors:
            raise WorkersDiedError(f"a worker ended: {self._errors[0]!r}")

    def _run(self, lease: float) -> None:
        try:
            self._loop.run(visibility_timeout=lease)
        except BaseException as error:  # noqa: BLE001 - told by check(), in the main thread
            self._errors.append(error)

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._loop.shutdown(timeout=GRACE)


class ProcessPool:
    """Workers in processes of their own.

    Each reads its standard input and ends when that ends: they end with this process even if it
    is killed. They are in sessions of their own, so that Ctrl-C reaches only this process, which
    then lets them finish.
    """

    def __init__(self, target: str, url: str, workers: int, lease: float) -> None:
        self._command = [sys.executable, "-m", __name__, target, str(lease)]
        # Not as an argument: a URL may hold a password, and everybody sees arguments.
        self._environment = {**os.environ, URL_VARIABLE: url}
        self._count = workers
        self._workers: list[subprocess.Popen[bytes]] = []
        self._deaths = 0
        self._done = 0

    @property
    def pids(self) -> list[int]:
        """The processes that were started last."""
        return [worker.pid for worker in self._workers]

    def check(self, done: int) -> None:
        """Start those again that died, unless they die without bringing results."""
        if done > self._done:
            self._done, self._deaths = done, 0
        for index, worker in enumerate(self._workers):
            code = worker.poll()
            if code is None:
                continue
            self._deaths += 1
            if self._deaths > DEATHS_WITHOUT_NEWS + self._count:
                how = f"signal {-code}" if code < 0 else f"exit code {code}"
                raise WorkersDiedError(
                    f"{self._deaths} workers died one after the other without a new result, the "
                    f"last by {how}; what they wrote to standard error says why"
                )
            _close(worker)
            self._workers[index] = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - this very program
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
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
    worker.stdin.close()


def serve(target: str, url: str, lease: float) -> None:
    """Be a worker: serve until standard input ends or a signal comes."""
    with weakincentives.connect(url) as backend:
        group = LoopGroup([load_loop(target, backend)], shutdown_timeout=GRACE / 2)

        def watch() -> None:
            sys.stdin.buffer.read()
            group.shutdown()

        threading.Thread(target=watch, name="parent", daemon=True).start()
        group.run(visibility_timeout=lease)


if __name__ == "__main__":
    serve(sys.argv[1], os.environ[URL_VARIABLE], float(sys.argv[2]))
