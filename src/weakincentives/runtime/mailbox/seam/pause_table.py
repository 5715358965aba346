"""The table of a backend that says which of its queues are paused."""

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from .driver import Steps
from .store import Store

__all__ = ["Pausable", "PauseTable", "can_pause"]


class PauseTable(Protocol):
    """The paused queues of a backend.

    From a paused queue nothing is leased but what is asked for by its id. The lease step itself
    decides that, so that every consumer of every process stops at once and pays nothing for it.
    Whatever is sent, settled or extended is as usual.
    """

    @property
    def steps(self) -> Steps:
        """Whether the steps block, suspend or do neither."""
        ...

    @property
    def backend_key(self) -> object:
        """What the tables of one backend have in common."""
        ...

    async def pause(self, queue: str, note: bytes) -> None:
        """Pause a queue, which need not exist yet; a later note replaces an earlier one."""
        ...

    async def resume(self, queue: str) -> bool:
        """Resume a queue, and wake its consumers; False if it was not paused."""
        ...

    async def notes(self) -> Sequence[tuple[str, bytes]]:
        """Return the paused queues, each with its note."""
        ...


class Pausable(Store, Protocol):
    """A Store of a queue that can be paused."""

    pause_table: PauseTable


def can_pause(store: Store) -> TypeGuard[Pausable]:
    """Return whether the queue of a Store can be paused."""
    return store.capabilities.pauses and hasattr(store, "pause_table")
