"""Locks that processes take on files."""

import fcntl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["alone", "locked"]

# Of a process: SQLite's locks belong to it, so that one here would lock nobody here out.
HOLDER = """
import sqlite3, sys, threading
other = sqlite3.connect(sys.argv[1], timeout=60, isolation_level=None)
seconds, told = float(sys.argv[2]), threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), told.set()), daemon=True).start()
while not told.wait(0.02):
    other.execute("BEGIN IMMEDIATE")
    print("locked", flush=True)
    told.wait(seconds)
    other.execute("ROLLBACK")
"""


@contextmanager
def locked(path: Path | str, seconds: float = 3600.0) -> Iterator[None]:
    """Hold the write lock of a SQLite file in another process, for so many seconds at a time."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path), str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "locked\n"
        try:
            yield
        finally:
            holder.kill()


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep every other process that asks for the same file waiting."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
