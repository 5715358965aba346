"""Paused queues in memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar
from weakref import WeakSet

from weakincentives.runtime.mailbox.seam.driver import Steps

if TYPE_CHECKING:
    from .store import InMemoryStore

__all__ = ["InMemoryPauseTable"]


class InMemoryPauseTable:
    """The paused ones of some queues in memory."""

    steps: ClassVar[Steps] = "inline"

    def __init__(self) -> None:
        self.backend_key = self
        self.paused: dict[str, bytes] = {}
        """The note of each paused queue; stores look into it at each lease."""
        self._stores: WeakSet[InMemoryStore] = WeakSet()

    def join(self, store: "InMemoryStore") -> None:
        """Wake the consumers of this store when its queue is resumed."""
        self._stores.add(store)

    async def pause(self, queue: str, note: bytes) -> None:
        """Pause a queue."""
        self.paused[queue] = note

    async def resume(self, queue: str) -> bool:
        """Resume a queue, and wake its consumers; False if it was not paused."""
        was_paused = self.paused.pop(queue, None) is not None
        for store in list(self._stores):
            if store.name == queue:
                store.bell.ring_all()
        return was_paused

    async def notes(self) -> Sequence[tuple[str, bytes]]:
        """Return the paused queues, each with its note."""
        return list(self.paused.items())
