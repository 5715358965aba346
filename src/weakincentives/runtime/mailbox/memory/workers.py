"""The workers of queues in memory."""

from collections.abc import Sequence
from typing import ClassVar

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.worker_table import WorkerRow

__all__ = ["InMemoryWorkerTable"]


class InMemoryWorkerTable:
    """The processes that serve some queues: all loops of this one have one row."""

    steps: ClassVar[Steps] = "inline"

    def __init__(self, clock: Clock | None = None) -> None:
        self.backend_key = self
        self._now = (clock if clock is not None else SystemClock()).monotonic
        self._rows: dict[str, tuple[bytes, float, float]] = {}

    async def write(self, id: str, entry: bytes, lasts: float) -> None:
        """Write the row of a worker, to be listed for so many seconds."""
        now = self._now()
        self._rows[id] = (entry, now, now + lasts)

    async def remove(self, id: str) -> None:
        """Remove the row of a worker."""
        self._rows.pop(id, None)

    async def rows(self) -> Sequence[WorkerRow]:
        """Return the rows that are still listed."""
        now = self._now()
        for id, (_, _, ends) in list(self._rows.items()):
            if ends <= now:
                self._rows.pop(id, None)
        return [WorkerRow(entry, now - written) for entry, written, _ in list(self._rows.values())]
