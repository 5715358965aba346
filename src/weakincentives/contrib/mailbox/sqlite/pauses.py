"""Paused queues of a SQLite file."""

from collections.abc import Sequence
from typing import ClassVar

from weakincentives.runtime.mailbox.seam.driver import Steps

from .database import Database
from .queries import QUERIES
from .unreadable import as_bytes, as_text

__all__ = ["SQLitePauseTable"]


class SQLitePauseTable:
    """The paused ones of the queues of a file."""

    steps: ClassVar[Steps] = "blocking"

    def __init__(self, database: Database) -> None:
        self._database = database
        self.backend_key = database.file.key

    async def pause(self, queue: str, note: bytes) -> None:
        """Pause a queue."""
        self._database.change(QUERIES["pause"], (queue, note))

    async def resume(self, queue: str) -> bool:
        """Resume a queue, and wake its consumers; False if it was not paused."""
        if not self._database.change(QUERIES["resume"], (queue,), (QUERIES["ready"], queue)):
            return False
        self._database.wake.ring_all()  # the change above has woken one of those in this process
        return True

    async def notes(self) -> Sequence[tuple[str, bytes]]:
        """Return the paused queues, each with its note."""
        rows = self._database.read(QUERIES["paused"])
        return [(as_text(name), as_bytes(note)) for name, note in rows]
