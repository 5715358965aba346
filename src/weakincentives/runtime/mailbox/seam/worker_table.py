"""The table of a backend in which workers describe themselves."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeGuard

from .driver import Steps
from .store import Store

__all__ = ["WorkerLister", "WorkerRow", "WorkerTable", "lists_workers"]


class WorkerRow(NamedTuple):
    """What a worker has written."""

    entry: bytes
    age: float
    """Seconds since it was written, by the backend's clock."""


class WorkerTable(Protocol):
    """The workers of a backend; each row vanishes by itself if it is not written again in time."""

    @property
    def steps(self) -> Steps:
        """Whether the steps block, suspend or do neither."""
        ...

    @property
    def backend_key(self) -> object:
        """What the tables of one backend have in common."""
        ...

    async def write(self, id: str, entry: bytes, lasts: float) -> None:
        """Write the row of a worker, to be listed for so many seconds."""
        ...

    async def remove(self, id: str) -> None:
        """Remove the row of a worker."""
        ...

    async def rows(self) -> Sequence[WorkerRow]:
        """Return the rows that are still listed."""
        ...


class WorkerLister(Store, Protocol):
    """A Store of a backend that lists its workers."""

    worker_table: WorkerTable


def lists_workers(store: Store) -> TypeGuard[WorkerLister]:
    """Return whether the backend of a Store lists its workers."""
    # A store of another package may not have declared that it has no such table.
    return store.capabilities.lists_workers and hasattr(store, "worker_table")
