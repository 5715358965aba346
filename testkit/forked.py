"""Functions in child processes that start quickly.

They are forked from a server that has imported their modules and holds no connection. An
interpreter that imports the library itself takes six times the CPU time.
"""

import multiprocessing
import multiprocessing.connection
import os
import signal
from collections.abc import Callable
from typing import Any

from testkit.processes import reaper

__all__ = ["ForkedProcess", "context", "preload"]

context = multiprocessing.get_context("forkserver")
_preloaded: list[str] = []


def preload(*modules: str) -> None:
    """Have the server import these modules when it starts."""
    _preloaded.extend(modules)
    context.set_forkserver_preload(_preloaded)


class ForkedProcess:
    """A process that runs a function; what it prints is read from ``output``."""

    def __init__(self, function: Callable[..., object], *arguments: Any) -> None:
        reading, writing = context.Pipe(duplex=False)
        self._process = context.Process(
            target=_run, args=(writing, function, arguments), daemon=True
        )
        self._process.start()
        # Also a stopped one must not outlive a test run that was killed itself.
        reaper.watch(self.pid)
        writing.close()
        self.output = os.fdopen(os.dup(reading.fileno()), encoding="utf-8")
        reading.close()
        self._watched = True

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def exitcode(self) -> int | None:
        """The exit code, negative if a signal ended it; None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """SIGKILL, also to a stopped process, and wait for its end."""
        if self._process.exitcode is None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its end and return the exit code."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"process {self.pid} did not end within {timeout:g} s")
        if self._watched:
            self._watched = False
            reaper.forget(self.pid)
        return self._process.exitcode


def _run(
    writing: multiprocessing.connection.Connection,
    function: Callable[..., object],
    arguments: tuple[Any, ...],
) -> None:
    os.setsid()  # Ctrl-C in the terminal is for the tests, and the reaper ends groups
    os.dup2(writing.fileno(), 1)
    writing.close()
    function(*arguments)
