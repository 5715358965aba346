"""Puts a load on a worker in a process of its own, and measures both from outside."""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.environment import ROOT
from benchmarks.peers.marks import BEGUN, ENDED, FORMAT, MARKS, SETTLED
from benchmarks.peers.peer import Load

__all__ = ["OURS", "Figures", "Usage", "cpu_seconds", "measure", "measure_held"]

OURS = "ours:Ours"
LOOK_SECONDS = 0.05
PATIENCE = 20
"""A worker that takes this many times the ideal is ended."""
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Usage:
    """The most that a process and its children have used at any time."""

    memory: float = 0.0
    """MB."""
    handles: int = 0
    threads: int = 0

    def look(self, pid: int) -> None:
        pids = list(_family(pid))
        memory = sum(_status(each, "VmHWM") for each in pids) / 1024
        self.memory = max(self.memory, memory)
        self.handles = max(self.handles, sum(_handles(each) for each in pids))
        self.threads = max(self.threads, sum(_status(each, "Threads") for each in pids))


@dataclass
class Figures:
    """How a load went."""

    load: Load
    begun: list[float] = field(default_factory=list)
    ended: list[float] = field(default_factory=list)
    settled: float | None = None
    usage: Usage = field(default_factory=Usage)
    cpu: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    """What the worker says of itself, if anything."""

    @property
    def is_done(self) -> bool:
        return len(self.ended) >= self.load.count

    @property
    def run_twice(self) -> int:
        return len(self.begun) - self.load.count

    @property
    def seconds(self) -> float:
        """From the first job's begin until all are settled, or have ended if no one says so."""
        if not self.is_done:
            return float("inf")
        return (self.settled or max(self.ended)) - min(self.begun)

    @property
    def times_ideal(self) -> float:
        return self.seconds / self.load.ideal

    @property
    def in_flight(self) -> int:
        """The most jobs at once."""
        changes = sorted([(at, 1) for at in self.begun] + [(at, -1) for at in self.ended])
        most = now = 0
        for _, change in changes:
            now += change
            most = max(most, now)
        return most

    def __str__(self) -> str:
        """Return all figures on one line."""
        used = self.usage
        took = (
            f"{self.seconds:.2f} s"
            if self.is_done
            else f"{len(self.ended)} of {self.load.count} jobs done"
        )
        return (
            f"{took}, {self.in_flight} at once, {used.memory:.0f} MB, {used.handles} handles, "
            f"{used.threads} threads, {self.cpu:.1f} s of CPU"
        )

    @classmethod
    def of(cls, name: str, python: Path, url: str, load: Load) -> Self:
        """Send the load, and run a worker until it has done it."""
        figures = cls(load)
        _send(name, python, url, load)
        with serving(name, python, url, load) as (process, marks):
            figures._watch(process, marks, says_when_settled=name == OURS)
        return figures

    def _watch(
        self, process: "subprocess.Popen[str]", marks: int, *, says_when_settled: bool
    ) -> None:
        until, rest = time.monotonic() + 60 + PATIENCE * self.load.ideal, b""
        while time.monotonic() < until and process.poll() is None:
            self.usage.look(process.pid)
            time.sleep(LOOK_SECONDS)  # so that looking costs the worker little
            rest = self._read(rest + _new_marks(marks))
            if self.settled or (len(self.ended) >= self.load.count and not says_when_settled):
                break
        self.cpu = cpu_seconds(process.pid)
        if self.settled and process.stdout is not None:
            self.facts = json.loads(process.stdout.readline())

    def _read(self, data: bytes) -> bytes:
        whole = len(data) // FORMAT.size * FORMAT.size
        for kind, at in FORMAT.iter_unpack(data[:whole]):
            if kind == BEGUN:
                self.begun.append(at)
            elif kind == ENDED:
                self.ended.append(at)
            elif kind == SETTLED:
                self.settled = at
        return data[whole:]


def measure_held(url: str, load: Load, seconds: float) -> float:
    """Return the CPU seconds that our worker uses while all its jobs run and none ends."""
    python, figures, rest = Path(sys.executable), Figures(load), b""
    _send(OURS, python, url, load)
    with serving(OURS, python, url, load) as (process, marks):
        until = time.monotonic() + 60
        while len(figures.begun) < load.count:
            if time.monotonic() > until or process.poll() is not None:
                raise RuntimeError(f"only {len(figures.begun)} of {load.count} jobs have begun")
            time.sleep(LOOK_SECONDS)
            rest = figures._read(rest + _new_marks(marks))
        before = cpu_seconds(process.pid)
        time.sleep(seconds)
        return cpu_seconds(process.pid) - before


def measure(name: str, url: str, load: Load, python: Path | None = None) -> Figures:
    """Measure a load; ``name`` is ``module:Class`` of a `Peer`."""
    return Figures.of(name, python or Path(sys.executable), url, load)


@contextmanager
def serving(
    name: str, python: Path, url: str, load: Load
) -> Iterator[tuple["subprocess.Popen[str]", int]]:
    """Run a worker in a process, and yield it with the end of the pipe for its marks."""
    marks, theirs = os.pipe()
    process = subprocess.Popen(
        _command(name, python, "serve", url, load),
        cwd=ROOT,
        env={**os.environ, MARKS: str(theirs)},
        pass_fds=[theirs],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    os.close(theirs)
    try:
        yield process, marks
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()
        os.close(marks)


def _send(name: str, python: Path, url: str, load: Load) -> None:
    if not url.startswith("memory:"):  # there the worker sends them itself
        command = _command(name, python, "send", url, load)
        subprocess.run(command, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)


def _new_marks(pipe: int) -> bytes:
    return os.read(pipe, 1 << 20) if select.select([pipe], [], [], 0)[0] else b""


def _command(name: str, python: Path, half: str, url: str, load: Load) -> list[str]:
    numbers = (load.count, load.seconds, load.concurrency, load.lease)
    return [str(python), "-m", "benchmarks.peers", name, half, url, *map(str, numbers)]


def cpu_seconds(pid: int) -> float:
    """Return what a process and its children have used of the CPU."""
    total = 0.0
    for each in _family(pid):
        fields = _text(each, "stat").rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS if fields else 0.0
    return total


def _family(pid: int) -> Iterator[int]:
    yield pid
    for child in _text(pid, f"task/{pid}/children").split():
        yield from _family(int(child))


def _status(pid: int, name: str) -> int:
    for line in _text(pid, "status").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0


def _handles(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH208 - Path would make objects of them
    except OSError:
        return 0


def _text(pid: int, name: str) -> str:
    """Return a file of /proc; nothing of a process that has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except OSError:
        return ""
