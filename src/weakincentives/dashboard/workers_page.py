"""The page of the processes that serve the queues."""

from dataclasses import dataclass

from weakincentives.runtime.mailbox import HeldMessage, WorkerInfo
from weakincentives.runtime.mailbox.workers import lease_is_over

from .formatting import time_text
from .overview import LONGEST_FILTER, one_page
from .worker_list import WorkerList

__all__ = ["HeldView", "LoopView", "WorkerView", "WorkersPage", "held_in", "workers_page"]

PAGE_SIZE, MOST_HELD = 50, 20
SILENT_SECONDS = 12.0
"""After this time without a sign, a worker is shown as silent: it writes one every five seconds."""


@dataclass(frozen=True, slots=True)
class LoopView:
    """The loops of one process on one mailbox."""

    mailbox: str
    concurrency: int
    held: int
    lag_seconds: float | None


@dataclass(frozen=True, slots=True)
class HeldView:
    """A message that a worker holds."""

    mailbox: str
    message_id: str
    delivery_count: int
    held_seconds: float
    lease_seconds_left: float
    lease_is_over: bool
    worker: str


@dataclass(frozen=True, slots=True)
class WorkerView:
    """One process that serves queues."""

    id: str
    host: str
    pid: int
    version: str
    started_at: str
    seen_seconds_ago: float
    is_silent: bool
    held: int
    loops: list[LoopView]
    oldest_held: list[HeldView]


@dataclass(frozen=True, slots=True)
class WorkersPage:
    """The processes that serve the queues."""

    is_supported: bool
    is_known: bool
    workers: list[WorkerView]
    find: str
    page: int
    pages: int
    total: int
    all: int
    versions: list[str]


def workers_page(known: WorkerList, *, find: str = "", page: int = 1) -> WorkersPage:
    """Return the workers whose host, process or mailboxes match; the backend is not asked."""
    find = find[:LONGEST_FILTER]
    everybody = known.workers or ()
    matching = [worker for worker in everybody if _matches(worker, find.lower())]
    page, pages, shown = one_page(matching, page, PAGE_SIZE)
    return WorkersPage(
        is_supported=known.is_supported,
        is_known=known.workers is not None,
        workers=[_view(worker, known.age_seconds) for worker in shown],
        find=find,
        page=page,
        pages=pages,
        total=len(matching),
        all=len(everybody),
        versions=sorted({worker.version for worker in everybody}),
    )


def _matches(worker: WorkerInfo, find: str) -> bool:
    texts = (worker.host, str(worker.pid), worker.version, *(one.mailbox for one in worker.loops))
    return any(find in text.lower() for text in texts)


def _view(worker: WorkerInfo, age: float) -> WorkerView:
    seen = worker.seen_seconds_ago + age
    return WorkerView(
        id=worker.id,
        host=worker.host,
        pid=worker.pid,
        version=worker.version,
        started_at=time_text(worker.started_at),
        seen_seconds_ago=seen,
        is_silent=seen > SILENT_SECONDS,
        held=worker.held,
        loops=[
            LoopView(one.mailbox, one.concurrency, one.held, one.lag_seconds)
            for one in worker.loops
        ],
        oldest_held=[_held(worker, one, age) for one in worker.oldest_held],
    )


def held_in(known: WorkerList, queue: str) -> list[HeldView]:
    """Return the messages of a queue that workers have held for the longest time."""
    age = known.age_seconds
    found = [
        _held(worker, one, age)
        for worker in known.workers or ()
        for one in worker.oldest_held
        if one.mailbox == queue
    ]
    return sorted(found, key=lambda held: -held.held_seconds)[:MOST_HELD]


def _held(worker: WorkerInfo, held: HeldMessage, age: float) -> HeldView:
    return HeldView(
        held.mailbox,
        held.message_id,
        held.delivery_count,
        held.held_seconds + age,
        held.lease_seconds_left - age,
        lease_is_over(worker, held),
        f"{worker.host}:{worker.pid}",
    )
