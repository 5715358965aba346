"""The processes that serve the queues, read now and then."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set

from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import UnsupportedOperationError, WorkerInfo
from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.runtime.mailbox.workers import is_silent, lease_is_over

__all__ = ["WorkerList"]

READ_SECONDS = 5.0
"""Workers describe themselves this often; to look more often shows nothing new."""
SHARE = 0.02
"""The share of the time that may be spent on reading them."""


class WorkerList:
    """The workers of a backend as they were last read, and which queues they serve."""

    def __init__(self, backend: Backend, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._clock = clock
        self._next = float("-inf")
        self._read_at = 0.0
        self._workers: Sequence[WorkerInfo] | None = None
        self._places: Mapping[str, int] = {}
        self._overdue: Set[str] = frozenset()
        self.is_supported = True
        """False if the backend has no place for such a list."""

    @property
    def workers(self) -> Sequence[WorkerInfo] | None:
        """The workers, by host and process id; None if they are not known."""
        return self._workers

    @property
    def age_seconds(self) -> float:
        """How long ago they were read."""
        return self._clock() - self._read_at

    def places(self, queue: str) -> int | None:
        """Return how many jobs of a queue workers run at once; None if that is not known."""
        return None if self._workers is None else self._places.get(queue, 0)

    def is_lease_over(self, queue: str) -> bool:
        """Return whether a worker goes on with a message of the queue after its lease."""
        return self._workers is not None and queue in self._overdue

    def refresh(self) -> None:
        """Read them again if it is time."""
        started = self._clock()
        if started < self._next or not self.is_supported:
            return
        try:
            workers = self._backend.workers()
        except UnsupportedOperationError:
            self.is_supported, self._workers = False, None
            return
        except WinkError:
            self._workers, self._next = None, started + READ_SECONDS
            return
        places: Counter[str] = Counter()
        for worker in workers:
            for loop in worker.loops:
                places[loop.mailbox] += loop.concurrency
        self._overdue = {
            held.mailbox
            for worker in workers
            for held in worker.oldest_held
            if lease_is_over(worker, held) and not is_silent(worker)
        }
        self._places, self._workers, self._read_at = places, workers, self._clock()
        self._next = started + max(READ_SECONDS, (self._read_at - started) / SHARE)
