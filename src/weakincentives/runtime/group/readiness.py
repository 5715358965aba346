"""Computes the answers to health probes: alive, ready, and how many dead letters there are."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weakincentives.runtime.heartbeat import Heartbeat

__all__ = ["Countable", "DeadLetterDepths", "LoopState", "ProbeReport", "liveness", "readiness"]

COUNT_TIMEOUT = 0.5
"""How many seconds a probe waits for the mailboxes to be counted."""
MAX_AGE = 1.0
"""How many seconds old a count may be before the mailbox is asked again."""


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The answer to a health probe."""

    ok: bool
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoopState:
    """The state of one loop, for health probes."""

    name: str
    running: bool
    heartbeat: Heartbeat
    crash: str | None = None

    def trouble(self, within: float) -> str | None:
        """Return why this loop is not ready, or None if it is."""
        if self.crash is not None:
            return f"crashed with {self.crash}"
        return self.heartbeat.trouble(within) if self.running else "is not running"


def liveness(crashes: Iterable[tuple[str, str | None]]) -> ProbeReport:
    """Return whether no loop has crashed; this never blocks or contacts a backend."""
    reasons = [f"{name}: crashed with {crash}" for name, crash in crashes if crash is not None]
    return ProbeReport(
        not reasons, {"status": "crashed" if reasons else "live", "reasons": reasons}
    )


def readiness(
    loops: Sequence[LoopState],
    *,
    within: float,
    stopping: bool = False,
    dead_letters: Sequence[dict[str, Any]] = (),
) -> ProbeReport:
    """Return whether every loop runs and has recently reached its mailbox.

    A group that is shutting down is not ready.
    """
    troubles = [loop.trouble(within) for loop in loops]
    reasons = ["the group is shutting down"] if stopping else []
    reasons += [
        f"{loop.name}: {trouble}" for loop, trouble in zip(loops, troubles, strict=True) if trouble
    ]
    body = {
        "status": "not ready" if reasons else "ready",
        "reasons": reasons,
        "loops": [
            {
                "name": loop.name,
                "running": loop.running,
                "ready": trouble is None,
                "seconds_since_beat": round(loop.heartbeat.elapsed(), 1),
            }
            for loop, trouble in zip(loops, troubles, strict=True)
        ],
        "dead_letters": list(dead_letters),
    }
    return ProbeReport(not reasons, body)


class Countable(Protocol):
    """The part of a mailbox that `DeadLetterDepths` needs."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    def approximate_count(self) -> int:
        """Return the number of messages in the queue."""
        ...


class DeadLetterDepths:
    """Counts the dead letters of a group without ever blocking a probe for long.

    Each mailbox is counted in its own thread, at most once a second. If a backend hangs, that
    costs one thread for each mailbox, and probes show the last known count.
    """

    def __init__(self, mailboxes: Iterable[Countable]) -> None:
        self._gauges = [DepthGauge(mailbox) for mailbox in mailboxes]

    def read(self) -> list[dict[str, Any]]:
        """Return the name, the depth and the age of the depth for each mailbox."""
        deadline = time.monotonic() + COUNT_TIMEOUT
        for asked in [gauge.ask() for gauge in self._gauges]:
            if asked is not None:
                asked.join(max(0.0, deadline - time.monotonic()))
        return [gauge.reading() for gauge in self._gauges]


class DepthGauge:
    """The last known depth of one mailbox."""

    def __init__(self, mailbox: Countable) -> None:
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._known: tuple[int, float] | None = None
        self._error: str | None = None

    def ask(self) -> threading.Thread | None:
        """Start counting in a thread and return it; None if that is not needed or possible."""
        with self._lock:
            busy = self._asking is not None and self._asking.is_alive()
            if busy or self._age() < MAX_AGE:
                return None
            asking = threading.Thread(target=self._ask, name="dlq-depth", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:  # no thread can be started
                self._error = type(error).__name__
                return None
            self._asking = asking
            return asking

    def reading(self) -> dict[str, Any]:
        """Return the last known depth, its age and the last error."""
        known, error = self._known, self._error
        reading: dict[str, Any] = {
            "name": self._mailbox.name,
            "depth": None if known is None else known[0],
            "age_seconds": None if known is None else round(time.monotonic() - known[1], 1),
        }
        return reading if error is None else {**reading, "error": error}

    def _age(self) -> float:
        return float("inf") if self._known is None else time.monotonic() - self._known[1]

    def _ask(self) -> None:
        try:
            self._known = self._mailbox.approximate_count(), time.monotonic()
            self._error = None
        except Exception as error:  # noqa: BLE001 - the probe reports any error of the backend
            self._error = type(error).__name__
