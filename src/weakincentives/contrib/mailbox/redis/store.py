"""The Store on Redis, in its two forms: steps that block, and steps that are awaited."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.flow import Steps, drive, drive_async
from weakincentives.runtime.mailbox.limits import Capabilities, Limits
from weakincentives.runtime.mailbox.reply_table import ReplyTable
from weakincentives.runtime.mailbox.store import Leases, Outgoing, QueueStats, Seen

from .calls import Call, Outcome
from .link import Link
from .queue import Queue
from .replies import creation_keys, is_beside
from .wire import Interrupt

__all__ = ["AsyncRedisStore", "QueueListener", "RedisStore"]

monotonic = SystemClock.monotonic


class RedisStore:
    """A queue reached through a client of `redis`."""

    steps: ClassVar[Steps] = "blocking"
    limits = Limits()
    capabilities = Capabilities()

    def __init__(self, link: Link, queue: Queue, look_interval: float = 1.0) -> None:
        self.link = link
        self.queue = queue
        self.name = queue.name
        self.look_interval = look_interval
        self.clock: Clock = SystemClock()

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages, all or none; chosen ids that are known are left as they are."""
        self.queue.was_put(self._run(self.queue.put(messages)), messages)

    def is_beside(self, table: ReplyTable) -> bool:
        """Whether replies of this table are on the same server."""
        return is_beside(table, self.link)

    def put_expecting(self, message: Outgoing, reply_id: str, ttl: float) -> None:
        """Add the message, and the pending reply to it."""
        call = self.queue.put_expecting(message, creation_keys(reply_id), reply_id, ttl)
        self.queue.was_put(self._run(call), (message,))

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        started = monotonic()
        outcome = self._run(self.queue.lease(count, seconds, acknowledge, ids))
        return self.queue.was_leased(outcome, started, seconds, acknowledge)

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        return self.queue.was_acknowledged(self._run(self.queue.settle("ack", handles)), handles)

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``; False where the lease had ended."""
        outcome = self._run(self.queue.settle("release", handles, delay))
        return self.queue.was_released(outcome, handles)

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        ends = monotonic() + seconds
        outcome = self._run(self.queue.settle("extend", handles, seconds))
        return self.queue.was_extended(outcome, handles, ends)

    def purge(self) -> int:
        """Remove every message, leased ones too, and return how many there were."""
        return int(self._run(self.queue.purge()).answer)

    def stats(self) -> QueueStats:
        """Count the messages by state."""
        return self.queue.was_counted(self._run(self.queue.stats()))

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Look at messages that wait, in the order in which they would be received."""
        return self.queue.was_seen(self._run(self.queue.peek(limit, offset)))

    def listen(self) -> "QueueListener":
        """Return a new listener."""
        return QueueListener(self.link, self.queue)

    def together(self) -> AbstractContextManager[None]:
        """Steps stay single: in a cluster, a reply and a queue live on different servers."""
        return nullcontext()

    def close(self) -> None:
        """Let go of the connections that are not in use."""
        self.link.close()

    def _run(self, call: Call) -> Outcome:
        return self.link.run(self.queue.slot, call)


class AsyncRedisStore:
    """A queue reached through a client of `redis.asyncio`."""

    steps: ClassVar[Steps] = "awaited"
    limits = Limits()
    capabilities = Capabilities()

    def __init__(self, link: Link, queue: Queue, look_interval: float = 1.0) -> None:
        self.link = link
        self.queue = queue
        self.name = queue.name
        self.look_interval = look_interval
        self.clock: Clock = SystemClock()

    async def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages, all or none; chosen ids that are known are left as they are."""
        self.queue.was_put(await self._run(self.queue.put(messages)), messages)

    def is_beside(self, table: ReplyTable) -> bool:
        """Whether replies of this table are on the same server."""
        return is_beside(table, self.link)

    async def put_expecting(self, message: Outgoing, reply_id: str, ttl: float) -> None:
        """Add the message, and the pending reply to it."""
        call = self.queue.put_expecting(message, creation_keys(reply_id), reply_id, ttl)
        self.queue.was_put(await self._run(call), (message,))

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
        outcome = await self._run(self.queue.lease(count, seconds, acknowledge, ids))
        return self.queue.was_leased(outcome, started, seconds, acknowledge)

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        outcome = await self._run(self.queue.settle("ack", handles))
        return self.queue.was_acknowledged(outcome, handles)

    async def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``; False where the lease had ended."""
        outcome = await self._run(self.queue.settle("release", handles, delay))
        return self.queue.was_released(outcome, handles)

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        ends = monotonic() + seconds
        outcome = await self._run(self.queue.settle("extend", handles, seconds))
        return self.queue.was_extended(outcome, handles, ends)

    async def purge(self) -> int:
        """Remove every message, leased ones too, and return how many there were."""
        return int((await self._run(self.queue.purge())).answer)

    async def stats(self) -> QueueStats:
        """Count the messages by state."""
        return self.queue.was_counted(await self._run(self.queue.stats()))

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Look at messages that wait, in the order in which they would be received."""
        return self.queue.was_seen(await self._run(self.queue.peek(limit, offset)))

    def listen(self) -> "QueueListener":
        """Return a new listener."""
        return QueueListener(self.link, self.queue)

    def together(self) -> AbstractContextManager[None]:
        """Steps stay single: in a cluster, a reply and a queue live on different servers."""
        return nullcontext()

    async def close(self) -> None:
        """Let go of the connections that are not in use."""
        self.link.close()

    async def _run(self, call: Call) -> Outcome:
        return await drive_async(self.link.call(self.queue.slot, call))


class QueueListener:
    """One blocked consumer, on a connection that is its own while it waits."""

    def __init__(self, link: Link, queue: Queue) -> None:
        self._link = link
        self._queue = queue
        self._interrupt = Interrupt()

    def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the wake token in this thread, then lease."""
        if self._interrupt.is_set:
            return Leases(())
        started = monotonic()
        call = self._queue.lease(count, seconds, woken=True)
        block = self._queue.block(seconds, wait, self._interrupt)
        outcome = drive(self._link.call(self._queue.slot, call, block))
        return self._queue.was_leased(outcome, started, seconds)

    async def lease_async(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the wake token in the event loop, then lease."""
        if self._interrupt.is_set:
            return Leases(())
        started = monotonic()
        call = self._queue.lease(count, seconds, woken=True)
        block = self._queue.block(seconds, wait, self._interrupt)
        outcome = await drive_async(self._link.call(self._queue.slot, call, block))
        return self._queue.was_leased(outcome, started, seconds)

    def interrupt(self) -> None:
        """End the wait in progress, and any later one."""
        self._interrupt.set()

    def close(self) -> None:
        """Nothing is left: the connection went back when the wait was over."""
