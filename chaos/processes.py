"""Child processes to be killed, stopped and continued; each starts in milliseconds.

They are forked from a server that has imported everything and holds no connection, and end with
the process that asked for them.
"""

import atexit
import importlib
import logging
import multiprocessing.connection
import multiprocessing.process
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from testkit.forked import context, preload
from testkit.processes import reaper

__all__ = ["Child", "Program"]

preload("chaos.roles", "chaos.stage", "boto3")
_children: set["Child"] = set()


class Child:
    """A process that runs a function of `chaos.roles`."""

    def __init__(self, role: Callable[..., object], name: str, *args: Any, plant: str = "") -> None:
        self.name = name
        self._process = context.Process(target=_run, args=(role, args, plant), daemon=True)
        self._process.start()
        # Also a stopped one must not outlive a runner that was killed itself.
        reaper.watch(self.pid)
        _children.add(self)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.is_alive()

    @property
    def exitcode(self) -> int | None:
        return self._process.exitcode

    def signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL; works on stopped ones too."""
        if self in _children:
            self.signal(signal.SIGKILL)
            self.join(10)

    def stop(self) -> None:
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def join(self, timeout: float) -> bool:
        """Wait for its end; False if it has not come."""
        self._process.join(timeout)
        if self._process.is_alive():
            return False
        if self in _children:
            _children.discard(self)
            reaper.forget(self.pid)
        return True


class Program:
    """An interpreter of its own that runs a function of `chaos.roles`, with more environment."""

    def __init__(
        self,
        role: Callable[..., object],
        *args: Any,
        environment: Mapping[str, str],
        plant: str = "",
    ) -> None:
        code = f"from chaos import planted, roles; roles.{role.__name__}(*{args!r})"
        if plant:
            code = code.replace(";", f"; planted.plant({plant!r});", 1)
        self._process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[1],
            env={**os.environ, **environment},
            start_new_session=True,
        )
        reaper.watch(self._process.pid)

    def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait(10)
            reaper.forget(self._process.pid)


def _run(role: Callable[..., object], args: tuple[Any, ...], plant: str = "") -> None:
    # Ctrl-C in the terminal is for the runner, which then ends its children; the reaper, if the
    # runner was killed, ends groups of processes.
    os.setsid()
    logging.disable(logging.CRITICAL)  # a scenario is nothing but trouble; its history tells it
    parent = multiprocessing.process.parent_process()
    assert parent is not None

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    if plant:
        importlib.import_module("chaos.planted").plant(plant)
    role(*args)


def _end_all() -> None:
    for child in list(_children):
        child.kill()


atexit.register(_end_all)
