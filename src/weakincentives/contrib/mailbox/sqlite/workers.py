"""The workers of a SQLite file."""

from collections.abc import Sequence
from typing import ClassVar

import apsw

from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.worker_table import WorkerRow

from .clock import MICRO
from .database import Database
from .queries import QUERIES

__all__ = ["SQLiteWorkerTable"]


class SQLiteWorkerTable:
    """The processes that serve queues of a file."""

    steps: ClassVar[Steps] = "blocking"

    def __init__(self, database: Database) -> None:
        self._database = database
        self.backend_key = database.file.key

    async def write(self, id: str, entry: bytes, lasts: float) -> None:
        """Write the row of a worker; this costs no fsync, for it is written again soon."""
        self._database.transact(_write, id, int(lasts * MICRO), entry, lasting=False)

    async def remove(self, id: str) -> None:
        """Remove the row of a worker."""
        self._database.change(QUERIES["worker_remove"], (id,), lasting=False)

    async def rows(self) -> Sequence[WorkerRow]:
        """Return the rows that are still listed."""
        return [
            WorkerRow(entry, age_us / MICRO)
            for entry, age_us in self._database.read(QUERIES["workers"])
        ]


def _write(connection: apsw.Connection, id: str, lasts_us: int, entry: bytes) -> None:
    connection.execute(QUERIES["worker_expire"])
    connection.execute(QUERIES["worker_write"], (id, lasts_us, entry))
