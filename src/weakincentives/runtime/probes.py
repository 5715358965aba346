"""What probes answer: is the group alive, is it ready, how many dead letters wait."""

import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .heartbeat import Heartbeat

__all__ = ["Counted", "DeadLetterDepths", "LoopState", "Report", "liveness", "readiness"]

PATIENCE = 0.5
FRESH = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """An answer to a probe."""

    ok: bool
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LoopState:
    """One loop of a group, as a probe sees it."""

    name: str
    running: bool
    heartbeat: Heartbeat
    crash: str | None = None

    def trouble(self, within: float) -> str | None:
        """Return why this loop is not ready, or None."""
        if self.crash is not None:
            return f"crashed with {self.crash}"
        return self.heartbeat.trouble(within) if self.running else "is not running"


def liveness(crashes: Iterable[tuple[str, str | None]]) -> Report:
    """Alive means: no loop has crashed. Nobody is asked, nothing is waited for."""
    reasons = [f"{name}: crashed with {crash}" for name, crash in crashes if crash is not None]
    return Report(not reasons, {"status": "crashed" if reasons else "live", "reasons": reasons})


def readiness(
    loops: Sequence[LoopState],
    *,
    within: float,
    stopping: bool = False,
    dead_letters: Sequence[dict[str, Any]] = (),
) -> Report:
    """Ready means: every loop runs and has reached its mailbox lately, and nobody is leaving."""
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
    return Report(not reasons, body)


class Counted(Protocol):
    """The part of a mailbox that a depth needs."""

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    def approximate_count(self) -> int:
        """Count what is in the queue."""
        ...


class DeadLetterDepths:
    """How many dead letters wait, without ever waiting long for the answer.

    Each mailbox is asked in a thread of its own, one at a time and at most once a second. A
    broker that hangs holds one thread for each mailbox; the probe shows the last known depth.
    """

    def __init__(self, mailboxes: Iterable[Counted]) -> None:
        self._gauges = [Gauge(mailbox) for mailbox in mailboxes]

    def read(self) -> list[dict[str, Any]]:
        """Return name, depth and the depth's age for each mailbox."""
        deadline = time.monotonic() + PATIENCE
        for asked in [gauge.ask() for gauge in self._gauges]:
            if asked is not None:
                asked.join(max(0.0, deadline - time.monotonic()))
        return [gauge.reading() for gauge in self._gauges]


class Gauge:
    """The last known depth of one mailbox."""

    def __init__(self, mailbox: Counted) -> None:
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._known: tuple[int, float] | None = None
        self._error: str | None = None

    def ask(self) -> threading.Thread | None:
        """Start asking, unless somebody is or the answer is fresh; return who asks."""
        with self._lock:
            busy = self._asking is not None and self._asking.is_alive()
            if busy or self._age() < FRESH:
                return None
            asking = threading.Thread(target=self._ask, name="dlq-depth", daemon=True)
            asking.start()
            self._asking = asking
            return asking

    def reading(self) -> dict[str, Any]:
        """Return what is known."""
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
        except Exception as error:  # noqa: BLE001 - whatever the broker says is an answer
            self._error = type(error).__name__
