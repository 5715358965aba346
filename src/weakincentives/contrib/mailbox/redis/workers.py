"""The workers of a Redis server."""

from collections.abc import Sequence

from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.worker_table import WorkerRow

from .client import ScriptClient
from .queue import milliseconds
from .redis_py import slot_of
from .resp import Head
from .script_call import Call
from .scripts import WorkerSettings, script

__all__ = ["RedisWorkerTable"]

# A hash tag of their own, and so one slot.
KEYS = (b"{wink}:workers", b"{wink}:worker_expiry")
SLOT = slot_of(KEYS[0])


class RedisWorkerTable:
    """The processes that serve queues of a server, or of a cluster; on one of its nodes."""

    def __init__(self, client: ScriptClient) -> None:
        self.steps: Steps = "awaited" if client.topology.awaited else "blocking"
        self.backend_key = client.servers
        self._client = client

    async def write(self, id: str, entry: bytes, lasts: float) -> None:
        """Write the row of a worker, to be listed for so many seconds."""
        settings = WorkerSettings(id, milliseconds(lasts))
        await self._client.call(SLOT, Call(Head(script("write_worker"), *KEYS), (*settings, entry)))

    async def remove(self, id: str) -> None:
        """Remove the row of a worker."""
        await self.write(id, b"", 0)

    async def rows(self) -> Sequence[WorkerRow]:
        """Return the rows that are still listed."""
        answer = (await self._client.call(SLOT, Call(Head(script("workers"), *KEYS)))).answer
        rows = iter(answer)
        return [WorkerRow(entry, age / 1000) for age, entry in zip(rows, rows, strict=True)]
