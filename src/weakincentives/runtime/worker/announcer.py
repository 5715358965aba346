"""Describes the loops of this process to the backends whose queues they serve."""

import _thread
import asyncio
import heapq
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from weakincentives.ids import new_id
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.errors import (
    MailboxClosedError,
)
from weakincentives.runtime.mailbox.seam.driver import run as run_coroutine
from weakincentives.runtime.mailbox.seam.optional_protocols import backend_of
from weakincentives.runtime.mailbox.seam.worker_table import WorkerTable
from weakincentives.runtime.mailbox.workers import HeldMessage, LoopInfo, WorkerInfo, encoded
from weakincentives.version import __version__

from .attempt import Attempt

__all__ = [
    "ANNOUNCERS",
    "Announcer",
    "Announcers",
    "ServingLoop",
    "wait_until_gone",
    "wait_until_gone_async",
]

logger = get_logger(__name__)

BEAT_SECONDS = 5.0
"""How often a process describes itself."""
LISTED_BEATS = 4
"""For how many beats it is listed after it has described itself for the last time."""
FIRST_SECONDS = 0.3
"""How long a loop must have run before it is listed: short ones cost nothing."""
LEAVE_SECONDS = 1.0
"""How long the end of the last loop waits until it is no longer listed."""
MOST_HELD = 20
"""How many of the messages that it holds a process names."""
MOST_LOOPS = 100
"""How many of the mailboxes that it serves a process names."""
LONGEST_NAME = 512


class ServingLoop(NamedTuple):
    """One run of a loop, and what can be asked about it at any time, from any thread."""

    mailbox: str
    concurrency: int
    held: Callable[[], Iterable[Attempt]]
    lag: Callable[[], float | None]
    is_over: Callable[[], bool]
    """Whether it has ended, so that it is forgotten even if it could not leave."""


class Announcer:
    """Describes the loops that serve one backend, from a thread that runs while there are any.

    It is a thread of its own, because a backend that hangs must not delay the leases of another.
    """

    def __init__(self, backend: object, announcers: "Announcers") -> None:
        self.backend = backend
        """What the tables of its loops have in common."""
        self._announcers = announcers
        self._id = new_id()
        self._started_at = datetime.now(UTC)
        self._loops: dict[object, tuple[ServingLoop, WorkerTable]] = {}
        # Of the loops that are, or were last: each loop has its own, and may close it at its end.
        self._tables: list[WorkerTable] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        # Locks, not events: an interrupt inside an `Event` would leave it locked.
        self._asleep = _thread.allocate_lock()
        self._asleep.acquire()
        self._leaving: list[Any] = []
        self._is_listed = False
        self._has_failed = False

    @property
    def is_running(self) -> bool:
        """Whether there is a thread."""
        return self._thread is not None

    def enter(self, key: object, loop: ServingLoop, table: WorkerTable) -> None:
        """List a loop from now on; this never fails, and talks to nobody."""
        with self._lock:
            self._loops[key] = loop, table
            if table not in self._tables:
                self._tables.append(table)
            if self._thread is not None:
                return
            thread = threading.Thread(target=self._run, name="announcer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                logger.warning("no thread can be started to list this worker; it runs unlisted")
                return
            self._thread = thread

    def leave(self, key: object) -> Any:
        """Stop listing a loop.

        Return a lock that is free once the process is no longer listed; None if it has not been,
        or is for other loops.
        """
        self._loops.pop(key, None)
        if self._loops or self._thread is None:
            return None
        gone = _thread.allocate_lock()
        gone.acquire()
        self._leaving.append(gone)
        self._wake()
        return gone if self._is_listed else None

    def _wake(self) -> None:
        try:
            self._asleep.release()
        except RuntimeError:
            pass  # it is to wake up already

    def _run(self) -> None:
        due = time.monotonic() + FIRST_SECONDS
        while not self._has_ended():
            self._asleep.acquire(timeout=max(due - time.monotonic(), 0.0))
            loops = self._present()
            if loops and time.monotonic() >= due:
                self._write(loops)
                due = time.monotonic() + BEAT_SECONDS
        self._announcers.forget(self)

    def _has_ended(self) -> bool:
        """Remove the row once there are no loops; return whether the thread can end."""
        if self._present():
            return False
        if self._is_listed:
            self._is_listed = False
            self._step(lambda table: table.remove(self._id))
        with self._lock:
            leaving, self._leaving = self._leaving, []
            for gone in leaving:
                gone.release()
            if self._loops:
                return False
            self._thread = None
            return True

    def _present(self) -> list[ServingLoop]:
        for key, (loop, _) in list(self._loops.items()):
            if loop.is_over():
                self._loops.pop(key, None)
        with self._lock:
            loops = list(self._loops.values())
            if loops:
                self._tables = [table for _, table in loops]
        return [loop for loop, _ in loops]

    def _write(self, loops: list[ServingLoop]) -> None:
        self._is_listed = True  # also if it fails: it may have been written
        self._step(
            lambda table: table.write(
                self._id, encoded(self._describe(loops)), LISTED_BEATS * BEAT_SECONDS
            )
        )

    def _step(self, make: Callable[[WorkerTable], Any]) -> None:
        try:
            for table in self._tables:
                try:
                    run_coroutine(partial(make, table))
                except MailboxClosedError:
                    continue  # its loop has ended, or will
                break
        except Exception as error:  # noqa: BLE001 - a worker must run on whatever becomes of this
            if not self._has_failed:
                self._has_failed = True
                logger.warning("this worker cannot be listed, and runs on: %s", error)
        else:
            self._has_failed = False

    def _describe(self, loops: list[ServingLoop]) -> WorkerInfo:
        infos: dict[str, LoopInfo] = {}
        held: list[tuple[str, Attempt]] = []
        for loop in loops:
            # A loop that waits for messages may still have what it has settled before.
            attempts = [one for one in loop.held() if not one.message.is_finalized]
            held += ((loop.mailbox, attempt) for attempt in attempts)
            before = infos.get(loop.mailbox, LoopInfo(loop.mailbox, 0, 0))
            lags = [lag for lag in (before.lag_seconds, loop.lag()) if lag is not None]
            infos[loop.mailbox] = LoopInfo(
                loop.mailbox,
                before.concurrency + loop.concurrency,
                before.held + len(attempts),
                round(max(lags), 3) if lags else None,
            )
        oldest = heapq.nlargest(MOST_HELD, held, key=lambda one: one[1].lease.held_seconds())
        return WorkerInfo(
            id=self._id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            started_at=self._started_at,
            loops=tuple(infos.values())[:MOST_LOOPS],
            held=len(held),
            oldest_held=tuple(_held_message(*one) for one in oldest),
        )


def _held_message(mailbox: str, attempt: Attempt) -> HeldMessage:
    message, lease = attempt.message, attempt.lease
    return HeldMessage(
        mailbox,
        str(message.id)[:LONGEST_NAME],
        message.delivery_count,
        round(lease.held_seconds(), 3),
        round(lease.remaining(), 3),
    )


class Announcers:
    """The announcers of this process, one for each backend."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin without any, as a forked child must: its loops are the parent's."""
        self._lock = threading.Lock()
        # Keyed by identity; an announcer keeps its backend's, so that no id is reused.
        self._of: dict[int, Announcer] = {}

    def enter(self, key: object, table: WorkerTable, loop: ServingLoop) -> Announcer:
        """List a loop in the table of its backend."""
        with self._lock:
            backend = backend_of(table)
            announcer = self._of.setdefault(id(backend), Announcer(backend, self))
            announcer.enter(key, loop, table)
        return announcer

    def forget(self, announcer: Announcer) -> None:
        """Remove an announcer whose thread has ended, unless it has a new one."""
        place = id(announcer.backend)
        with self._lock:
            if self._of.get(place) is announcer and not announcer.is_running:
                del self._of[place]


def wait_until_gone(gone: Any) -> None:
    """Wait until the process is no longer listed, but not for long."""
    if gone is not None:
        gone.acquire(timeout=LEAVE_SECONDS)


async def wait_until_gone_async(gone: Any) -> None:
    """Do what `wait_until_gone` does, without blocking the event loop."""
    if gone is None:
        return
    ends = time.monotonic() + LEAVE_SECONDS
    while not gone.acquire(blocking=False) and time.monotonic() < ends:  # noqa: ASYNC110 - a thread
        await asyncio.sleep(0.01)


# One for the process, so that all of its loops are one worker of a backend.
ANNOUNCERS = Announcers()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=ANNOUNCERS.reset)
