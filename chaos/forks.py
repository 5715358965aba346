"""Forks of a process whose other threads open and drop backends, with a busy garbage collector."""

import gc
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from chaos.ledger import Ledger
from weakincentives import connect

__all__ = ["fork_among_threads"]

THREADS = 3
PATIENCE = 60.0
"""Seconds after which a child that has not ended is stuck; it takes milliseconds."""


def fork_among_threads(url: str, _histories: str, _name: str, path: str, forks: int) -> None:
    """Fork so many times; each child sends, as the threads do, and ends."""
    gc.set_threshold(20)  # so that something is collected inside of everything
    ledger, over = Ledger(Path(path)), threading.Event()
    kept = connect(url).mailbox("jobs")
    _send(kept, ledger)

    def open_and_drop() -> None:
        while not over.is_set():
            backend = connect(url)
            box: Any = backend.mailbox("jobs")
            _send(box, ledger)
            # A cycle: only the collector drops it, whenever and in whatever thread it runs.
            cycle: list[Any] = [backend, box]
            cycle.append(cycle)

    threads = [threading.Thread(target=open_and_drop, daemon=True) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for _ in range(forks):
        _check(_child(url, kept, ledger))
        _send(kept, ledger)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
        if thread.is_alive():
            raise SystemExit(4)


def _send(box: Any, ledger: Ledger) -> None:
    ledger.note(box.send("x"))


def _child(url: str, kept: Any, ledger: Ledger) -> int:
    """Fork; the child sends through what it has inherited, and through a backend of its own."""
    pid = os.fork()
    if pid == 0:
        code = 1
        with suppress(BaseException):
            _send(kept, ledger)
            with connect(url) as backend:
                _send(backend.mailbox("jobs"), ledger)
            code = 0
        os._exit(code)
    return pid


def _check(pid: int) -> None:
    """Wait for the end of a child that must not fail."""
    ends = time.monotonic() + PATIENCE
    while time.monotonic() < ends:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            if os.waitstatus_to_exitcode(status) != 0:
                raise SystemExit(3)
            return
        time.sleep(0.001)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise SystemExit(2)
