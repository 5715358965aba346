"""The Store on Redis."""

from collections.abc import Sequence

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.limits import Limits
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState, NewReply
from weakincentives.runtime.mailbox.seam.reply_table import ReplyTable
from weakincentives.runtime.mailbox.seam.store import GivingBack, Leases, Outgoing, QueueStats, Seen

from .client import ScriptClient
from .connection import Interrupt
from .pauses import RedisPauseTable
from .queue import Queue
from .replies import creation_keys, is_beside
from .workers import RedisWorkerTable

__all__ = ["QueueListener", "RedisStore"]

monotonic = SystemClock.monotonic


class RedisStore:
    """One queue, reached through a client of `redis` or of `redis.asyncio`."""

    limits = Limits()
    capabilities = Capabilities()

    def __init__(self, client: ScriptClient, queue: Queue, look_interval: float = 1.0) -> None:
        self.steps: Steps = "awaited" if client.topology.awaited else "blocking"
        self.client = client
        self.worker_table = RedisWorkerTable(client)
        self.pause_table = RedisPauseTable(client)
        self.queue = queue
        self.name = queue.name
        self.look_interval = look_interval
        self.clock: Clock = SystemClock()

    @property
    def backend_key(self) -> object:
        """The server of this queue: one node that hangs must not delay queues on others."""
        return self.client.server_of(self.queue.slot)

    async def put(self, messages: Sequence[Outgoing]) -> int | None:
        """Add the messages, all or none; skip those whose chosen id is known already."""
        return self.queue.was_put(
            await self.client.call(self.queue.slot, self.queue.put(messages)), messages
        )

    def is_beside(self, table: ReplyTable) -> bool:
        """Whether replies of this table are on the same server."""
        return is_beside(table, self.client)

    async def put_expecting(self, message: Outgoing, table: ReplyTable, reply: NewReply) -> None:
        """Add the message, and the pending reply to it."""
        call = self.queue.put_expecting(message, creation_keys(reply.id), reply)
        self.queue.was_put(await self.client.call(self.queue.slot, call), (message,))

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        started = monotonic()
        outcome = await self.client.call(
            self.queue.slot, self.queue.lease(count, seconds, acknowledge, ids)
        )
        return self.queue.was_leased(outcome, started, seconds, acknowledge)

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        outcome = await self.client.call(self.queue.slot, self.queue.settle("ack", handles))
        return self.queue.was_acknowledged(outcome, handles)

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``; False where the lease had ended."""
        outcome = await self.client.call(self.queue.slot, self.queue.settle(how, handles, delay))
        return self.queue.was_released(outcome, handles)

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Make the leases end ``seconds`` from now; False where they had ended already."""
        ends = monotonic() + seconds
        outcome = await self.client.call(
            self.queue.slot, self.queue.settle("extend", handles, seconds)
        )
        return self.queue.was_extended(outcome, handles, ends)

    async def cancel(self, ids: Sequence[str]) -> Sequence[bytes | None]:
        """Cancel messages; the first step decides, further ones look through a deep queue."""
        call = self.queue.cancel(ids)
        begin, *answer = (await self.client.call(self.queue.slot, call)).answer
        payloads: Sequence[bytes | None] = answer
        found = [id for id, payload in zip(ids, payloads, strict=True) if payload is not None]
        while begin >= 0:
            further = self.queue.cancel_further(call, found, begin)
            begin = (await self.client.call(self.queue.slot, further)).answer[0]
        return payloads

    async def lease_states(self, handles: Sequence[str]) -> Sequence[LeaseState]:
        """Return, for each handle, whether its lease is held and its message cancelled."""
        call = self.queue.lease_states(handles)
        return self.queue.were_held(await self.client.call(self.queue.slot, call))

    async def purge(self) -> int:
        """Remove every message, leased ones too, and return how many there were."""
        return int((await self.client.call(self.queue.slot, self.queue.purge())).answer)

    async def forget_soon(self, ids: Sequence[str]) -> None:
        """Remember chosen ids for only five minutes more; does not wait for the answer."""
        call = self.queue.forget_soon(ids)
        await self.client.post(self.queue.slot, call, as_text=True)

    async def stats(self) -> QueueStats:
        """Count the messages by state."""
        return self.queue.was_counted(await self.client.call(self.queue.slot, self.queue.stats()))

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Return pending messages, in the order in which they would be received."""
        return self.queue.was_seen(
            await self.client.call(self.queue.slot, self.queue.peek(limit, offset))
        )

    def listen(self, *, in_loop: bool = False) -> "QueueListener":
        """Return a new listener."""
        return QueueListener(self.client.in_loop() if in_loop else self.client, self.queue)

    def lease_keeper(self) -> "RedisStore":
        """Return a store of the same queue that extends leases from a thread."""
        keeper = RedisStore(self.client.in_threads(), self.queue, self.look_interval)
        keeper.client.pool.join(keeper)
        return keeper

    def close(self) -> None:
        """Close the idle connections, unless other mailboxes need them."""
        self.client.pool.leave(self)


class QueueListener:
    """One blocked consumer; it has a connection to itself while it waits."""

    def __init__(self, client: ScriptClient, queue: Queue) -> None:
        self._client = client
        self._queue = queue
        self._interrupt = Interrupt()

    async def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the wake token, then lease."""
        if self._interrupt.is_set:
            return Leases(())
        started = monotonic()
        call = self._queue.lease(count, seconds, woken=True)
        block = self._queue.block(seconds, wait, self._interrupt)
        outcome = await self._client.call(self._queue.slot, call, block)
        leases = self._queue.was_leased(outcome, started, seconds)
        if outcome.unwaited and not leases.messages:
            await self._client.pause_unwaited(wait, self._interrupt)
        return leases

    def interrupt(self) -> None:
        """End the wait in progress, and any later one."""
        self._interrupt.set()

    def close(self) -> None:
        """Do nothing: the connection went back to the pool when the wait was over."""
