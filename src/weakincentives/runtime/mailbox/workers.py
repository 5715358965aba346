"""What is known of the processes that serve the queues of a backend."""

from dataclasses import dataclass, replace
from datetime import datetime

from weakincentives.serde import Codec, DecodeError

from .seam.worker_table import WorkerRow

__all__ = [
    "HeldMessage",
    "LoopInfo",
    "WorkerInfo",
    "encoded",
    "is_silent",
    "lease_is_over",
    "worker_of",
]

SILENT_SECONDS = 10.0
"""A worker writes its entry every five seconds, so that one as old as this is of a worker that is
gone, stopped or cut off."""


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that a worker has leased and not settled yet."""

    mailbox: str
    message_id: str
    delivery_count: int
    held_seconds: float
    """How long the worker has had it."""
    lease_seconds_left: float
    """How long its lease still lasts, unless it is extended; below 0 if it is over."""


@dataclass(frozen=True, slots=True)
class LoopInfo:
    """The loops of one process that serve one mailbox."""

    mailbox: str
    concurrency: int
    """How many jobs they run at once."""
    held: int
    """How many messages they hold."""
    lag_seconds: float | None = None
    """How late the event loop was when it was last asked for a sign; None without an event loop."""


@dataclass(frozen=True, slots=True)
class WorkerInfo:
    """A process that serves queues of a backend, as it last described itself."""

    id: str
    """Random, and new for each process."""
    host: str
    pid: int
    version: str
    """The version of weakincentives."""
    started_at: datetime
    """When it began to serve, by its own clock."""
    loops: tuple[LoopInfo, ...]
    """The mailboxes that it serves; a hundred at most."""
    held: int
    """How many messages it holds."""
    oldest_held: tuple[HeldMessage, ...]
    """The twenty that it has held for the longest time."""
    seen_seconds_ago: float = 0.0
    """How long ago it described itself, by the backend's clock."""


_CODEC = Codec(WorkerInfo)


def is_silent(worker: WorkerInfo) -> bool:
    """Return whether a worker has given no sign for too long."""
    return worker.seen_seconds_ago > SILENT_SECONDS


def lease_is_over(worker: WorkerInfo, held: HeldMessage) -> bool:
    """Return whether a lease is over for sure.

    A worker that is alive may have extended it since it wrote its entry, so only a lease that was
    over by then counts.
    """
    left = held.lease_seconds_left
    return left < 0 if is_silent(worker) else left + worker.seen_seconds_ago < 0


def encoded(worker: WorkerInfo) -> bytes:
    """Return what a worker writes into the table."""
    return _CODEC.encode(worker)


def worker_of(row: WorkerRow) -> WorkerInfo | None:
    """Return the worker that a row describes, as of now; None if the row cannot be read."""
    try:
        worker: WorkerInfo = _CODEC.decode(row.entry, None)
    except DecodeError:
        return None
    age = max(row.age, 0.0)
    held = tuple(
        replace(
            one,
            held_seconds=one.held_seconds + age,
            lease_seconds_left=one.lease_seconds_left - age,
        )
        for one in worker.oldest_held
    )
    return replace(worker, oldest_held=held, seen_seconds_ago=age)
