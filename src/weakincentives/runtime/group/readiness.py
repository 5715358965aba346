"""Computes the answers to health probes: alive, ready, and how many dead letters there are."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from weakincentives.runtime.heartbeat import Heartbeat

from .last_reading import LastReading, refresh

__all__ = ["Countable", "DeadLetterDepths", "LoopState", "ProbeReport", "liveness", "readiness"]

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
    """Counts the dead letters of a group without ever blocking a probe for long."""

    def __init__(self, mailboxes: Iterable[Countable]) -> None:
        self._readings = [
            LastReading(mailbox.name, mailbox.approximate_count) for mailbox in mailboxes
        ]

    def read(self) -> list[dict[str, Any]]:
        """Return the name, the depth and the age of the depth for each mailbox."""
        refresh(self._readings, MAX_AGE)
        return [_shown(reading) for reading in self._readings]


def _shown(reading: LastReading[int]) -> dict[str, Any]:
    depth, age, error = reading.value, reading.age, reading.error
    shown: dict[str, Any] = {
        "name": reading.name,
        "depth": depth,
        "age_seconds": None if depth is None else round(age, 1),
    }
    return shown if error is None else {**shown, "error": error}
