"""What every client did and was told, one line a fact: also of clients that were killed.

A line is written before an operation and another after it, so that an operation without its
second line is one whose outcome nobody knows.
"""

import itertools
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

from weakincentives.clock import SystemClock

__all__ = ["Call", "Log", "Op", "Outcome", "now", "read"]

Outcome = Literal["ok", "failed", "unknown"]

now = SystemClock.monotonic
"""The machine's boot clock, the same in all its processes."""


class Op(NamedTuple):
    """One operation on one message by one client."""

    client: str
    op: str
    """send, receive, ack, nack, undo, extend, purge; or a mark: kill, stop, heal, ..."""
    id: str
    handle: str
    outcome: Outcome
    start: float
    end: float
    """Infinite if the outcome is unknown because nothing came back."""
    seconds: float = 0.0
    """Length of the lease or extension, or the delay of a send or nack."""
    count: int = 0
    """The delivery count that a receive showed."""
    place: int = 0
    """The place within the batch."""


class Call:
    """An operation in progress, on any number of messages."""

    def __init__(self) -> None:
        self.outcomes: Sequence[Outcome] | Outcome = "ok"
        self.got: list[tuple[str, str, int]] = []
        """For a receive: id, handle and delivery count of each message."""


class Log:
    """The lines of one client; several threads may write."""

    def __init__(self, directory: Path, client: str) -> None:
        self.client = client
        self._file = os.open(
            directory / f"{client}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        self._numbers = itertools.count(os.getpid() << 32)

    @contextmanager
    def operation(
        self, op: str, subjects: Sequence[tuple[str, str]], seconds: float = 0.0
    ) -> Iterator[Call]:
        """Write what is about to happen to these (id, handle), then how it went."""
        number, call = next(self._numbers), Call()
        self._write({"n": number, "op": op, "of": subjects, "s": seconds, "t": now()})
        try:
            yield call
        except Exception as error:
            self._write({"n": number, "t": now(), "out": outcome_of(error), "got": []})
            raise
        self._write({"n": number, "t": now(), "out": call.outcomes, "got": call.got})

    def mark(self, op: str, id: str = "") -> float:
        """Write that something happened at this moment."""
        with self.operation(op, [(id, "")]):
            return now()

    def close(self) -> None:
        os.close(self._file)

    def _write(self, line: dict[str, Any]) -> None:
        line["c"] = self.client
        os.write(self._file, json.dumps(line).encode() + b"\n")


def outcome_of(error: Exception) -> Outcome:
    """What an error says about the operation that met it."""
    from weakincentives.runtime.mailbox.errors import (
        InvalidParameterError,
        MailboxClosedError,
        MailboxFullError,
    )

    sure = (InvalidParameterError, MailboxFullError, MailboxClosedError)
    return "failed" if isinstance(error, sure) else "unknown"


def read(directory: Path) -> list[Op]:
    """Return the operations of all clients that wrote here, by the time they began."""
    ops: list[Op] = []
    for path in sorted(directory.glob("*.jsonl")):
        ops += merge(_lines(path))
    return sorted(ops, key=lambda op: op.start)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            # The last line of a process that was killed may be cut.
            if line.endswith(b"}\n"):
                yield json.loads(line)


def merge(lines: Iterable[dict[str, Any]]) -> list[Op]:
    """Join the first and the second line of each operation."""
    begun: dict[int, dict[str, Any]] = {}
    ops: list[Op] = []
    for line in lines:
        if "op" in line:
            begun[line["n"]] = line
        else:
            ops += _joined(begun.pop(line["n"]), line)
    unheard: dict[str, Any] = {"t": float("inf"), "out": "unknown", "got": []}
    for first in begun.values():
        ops += _joined(first, unheard)
    return ops


def _joined(first: dict[str, Any], second: dict[str, Any]) -> Iterator[Op]:
    times = first["t"], second["t"]
    if first["op"] == "receive" and second["out"] == "ok":
        for place, (id, handle, count) in enumerate(second["got"]):
            yield Op(first["c"], "receive", id, handle, "ok", *times, first["s"], count, place)
        return
    outcomes = second["out"]
    for place, (id, handle) in enumerate(first["of"]):
        outcome = outcomes if isinstance(outcomes, str) else outcomes[place]
        yield Op(first["c"], first["op"], id, handle, outcome, *times, first["s"], 0, place)
