"""Looks at all queues again and again, at a bounded cost, in a thread of its own."""

import heapq
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from weakincentives.errors import WinkError
from weakincentives.logs import get_logger
from weakincentives.runtime.dead_letters.letter import DeadLetter
from weakincentives.runtime.mailbox import Mailbox, MailboxStats
from weakincentives.runtime.mailbox.envelope import Envelope
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.backend import Backend

from .history import Counts, History
from .trouble import Look, QueueVerdict, verdict_of
from .worker_list import WorkerList

__all__ = ["Survey", "SurveyReading", "SurveyState"]

logger = get_logger(__name__)

SHARE = 0.25
"""The share of its time that a survey may spend on counting."""
LISTING_SHARE = 0.01
"""The share of its time that it may spend on finding out which queues there are."""
QUIET_ROUNDS = 5
"""A queue that is empty and does not change is counted in every so many rounds only."""
REMEMBERED, MOST_LOOKS = 120.0, 100
"""For how many seconds single looks are remembered, and how many of them."""
MOST_QUEUES = 100_000
NO_VERDICT = verdict_of(())


@dataclass(frozen=True, slots=True)
class SurveyReading:
    """What is known of a queue."""

    name: str
    stats: MailboxStats | None
    """None until it was counted for the first time."""
    age_seconds: float
    """How long ago that was."""
    error: str | None
    has_letters: bool
    verdict: QueueVerdict
    places: int | None
    """How many jobs of it workers run at once; None if that is not known."""


@dataclass(frozen=True, slots=True)
class SurveyState:
    """How the survey itself is doing."""

    version: int
    """Rises with every round."""
    at: float | None
    """When the last round ended that could reach the backend, in seconds since the epoch."""
    error: str | None
    """Why the last round could not."""
    queues: int
    left_out: int
    """How many queues there are beyond the most that are counted."""


@dataclass(slots=True, eq=False)
class SurveyedQueue:
    """A queue and the last looks at it; only the survey's thread writes here."""

    mailbox: Mailbox[Any, Any] | None = None
    looks: tuple[Look, ...] = ()
    verdict: QueueVerdict = NO_VERDICT
    error: str | None = None
    has_letters: bool | None = None
    """None: not known, because it has never held anything."""

    def is_busy(self) -> bool:
        """Whether it is worth a look in every round."""
        if self.error is not None or not self.looks:
            return True
        first, last = self.looks[0].stats, self.looks[-1].stats
        return last.total > 0 or first.total != last.total


class Survey:
    """Counts the queues of a backend round after round, those first that were counted longest ago.

    Pages only read what it has found, so that no number of readers or queues makes the backend
    work more. A round ends after a share of the interval; what it left out comes first in the next.
    """

    def __init__(
        self,
        backend: Backend,
        history: History,
        interval: float,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._backend = backend
        self._history = history
        self.workers = WorkerList(backend, clock)
        self._interval = interval
        self._clock = clock
        self._queues: dict[str, SurveyedQueue] = {}
        self._turns: list[tuple[float, str]] = []
        self._asked: set[str] = set()
        self._next_listing = float("-inf")
        self._left_out = 0
        self._state = SurveyState(0, None, None, 0, 0)
        self._listeners: list[Callable[[], None]] = []
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def state(self) -> SurveyState:
        """How the survey itself is doing."""
        return self._state

    def readings(self) -> list[SurveyReading]:
        """Return what is known of each queue."""
        now = self._clock()
        places = self.workers.places
        return [_reading(name, queue, now, places(name)) for name, queue in self._queues.items()]

    def reading(self, name: str) -> SurveyReading | None:
        """Return what is known of one queue, and count it in the next round."""
        queue = self._queues.get(name)
        if queue is None:
            return None
        self._asked.add(name)
        return _reading(name, queue, self._clock(), self.workers.places(name))

    def when_done(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after every round, in the survey's thread."""
        self._listeners.append(listener)

    def start(self) -> None:
        """Begin, in a thread of its own."""
        self._thread = threading.Thread(target=self._run, name="dashboard-survey", daemon=True)
        self._thread.start()

    def stop(self, timeout: float = 5.0) -> None:
        """End after the queue that is being counted."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def round(self) -> None:
        """Look at the queues once."""
        started = self._clock()
        error: str | None = None
        try:
            self._list(started)
            self.workers.refresh()
            error = self._count(self._clock())
        except WinkError as failure:
            error = f"{type(failure).__name__}: {failure}"
        except Exception as failure:  # a survey that ends would show old figures for ever
            logger.exception("the survey of the dashboard failed", exc_info=failure)
            error = type(failure).__name__
        at = time.time() if error is None else self._state.at
        known = len(self._queues)
        self._state = SurveyState(self._state.version + 1, at, error, known, self._left_out)
        for listener in self._listeners:
            listener()

    def _run(self) -> None:
        while True:
            self.round()
            if self._stop.wait(self._interval):
                return

    def _list(self, started: float) -> None:
        if started < self._next_listing:
            return
        names = self._backend.queues()
        took = self._clock() - started
        self._next_listing = started + took / LISTING_SHARE
        self._left_out = max(len(names) - MOST_QUEUES, 0)
        known = self._queues
        # Replaced as a whole: pages read it meanwhile. What is no longer listed has gone.
        self._queues = {name: known.get(name) or SurveyedQueue() for name in names[:MOST_QUEUES]}
        for name in self._queues.keys() - known.keys():
            heapq.heappush(self._turns, (float("-inf"), name))

    def _count(self, started: float) -> str | None:
        """Count queues until the time is over; return the error if not one could be counted."""
        counted: dict[str, Counts] = {}
        error: str | None = None
        until = started + self._interval * SHARE
        for name, queue in self._due(started):
            try:
                if queue.mailbox is None:
                    queue.mailbox = self._backend.mailbox(name)
                stats = queue.mailbox.stats()
            except WinkError as failure:
                error = queue.error = f"{type(failure).__name__}: {failure}"
                queue.verdict = verdict_of(queue.looks, is_reachable=False)
            else:
                self._was_counted(name, queue, queue.mailbox, stats)
                counted[name] = Counts(stats.pending, stats.in_flight, stats.delayed)
            if self._clock() >= until or self._stop.is_set():
                break
        self._history.record(counted)
        return None if counted else error

    def _due(self, now: float) -> Iterator[tuple[str, SurveyedQueue]]:
        """Yield those whose turn it is, the longest due first; each gets its next turn."""
        asked, self._asked = self._asked, set()
        for name in asked:
            if name in self._queues:
                yield name, self._queues[name]
        while self._turns and self._turns[0][0] <= now:
            _, name = heapq.heappop(self._turns)
            queue = self._queues.get(name)
            if queue is None:
                continue  # it has gone
            rounds = 0.5 if queue.is_busy() else QUIET_ROUNDS - 0.5
            # Before it is counted: the round may end there.
            heapq.heappush(self._turns, (now + rounds * self._interval, name))
            if name not in asked:
                yield name, queue

    def _was_counted(
        self, name: str, queue: SurveyedQueue, mailbox: Mailbox[Any, Any], stats: MailboxStats
    ) -> None:
        now = self._clock()
        queue.error = None
        remembered = [look for look in queue.looks if look.at >= now - REMEMBERED]
        queue.looks = (*remembered[1 - MOST_LOOKS :], Look(now, stats))
        if queue.has_letters is None and stats.pending:
            queue.has_letters = _holds_letters(mailbox)
        queue.verdict = verdict_of(
            queue.looks,
            has_letters=bool(queue.has_letters),
            places=self.workers.places(name),
            is_lease_over=self.workers.is_lease_over(name),
        )


def is_letter(envelope: Envelope) -> bool:
    """Return whether a message is a dead letter."""
    return envelope.type == DeadLetter.__name__ or isinstance(envelope.body, DeadLetter)


def _holds_letters(mailbox: Mailbox[Any, Any]) -> bool:
    """Return whether the first message that waits is a dead letter."""
    if not isinstance(mailbox, StoreMailbox) or not mailbox.capabilities.peeks:
        return False
    try:
        return any(is_letter(mailbox._sealer.open(seen.payload)) for seen in mailbox.peek(1))
    except WinkError:
        return False


def _reading(name: str, queue: SurveyedQueue, now: float, places: int | None) -> SurveyReading:
    looks = queue.looks
    return SurveyReading(
        name=name,
        stats=looks[-1].stats if looks else None,
        age_seconds=now - looks[-1].at if looks else float("inf"),
        error=queue.error,
        has_letters=bool(queue.has_letters),
        verdict=queue.verdict,
        places=places,
    )
