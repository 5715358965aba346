"""The Store on Redis, in its two forms: steps that block, and steps that are awaited."""

from collections.abc import Awaitable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.flow import Steps, drive, drive_async
from weakincentives.runtime.mailbox.limits import Capabilities, Limits
from weakincentives.runtime.mailbox.store import Leases, Outgoing, QueueStats, Seen

from .queue import Queue
from .wire import Interrupt

__all__ = ["AsyncRedisStore", "QueueListener", "RedisStore"]


class RedisStore:
    """A queue reached through a client of `redis`."""

    steps: ClassVar[Steps] = "blocking"
    limits = Limits()
    capabilities = Capabilities()

    def __init__(self, queue: Queue, look_interval: float = 1.0) -> None:
        self.queue = queue
        self.name = queue.name
        self.look_interval = look_interval
        self.clock: Clock = SystemClock()

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages, all or none; known ids are left as they are."""
        drive(self.queue.put(messages))

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        return drive(self.queue.lease(count, seconds, acknowledge, ids))

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        return drive(self.queue.acknowledge(handles))

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``; False where the lease had ended."""
        return drive(self.queue.release(handles, delay))

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        return drive(self.queue.extend(handles, seconds))

    def purge(self) -> int:
        """Remove every message, leased ones too, and return how many there were."""
        return drive(self.queue.purge())

    def stats(self) -> QueueStats:
        """Count the messages by state."""
        return drive(self.queue.stats())

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Look at messages that wait, in the order in which they would be received."""
        return drive(self.queue.peek(limit, offset))

    def listen(self) -> "QueueListener":
        """Return a new listener."""
        return QueueListener(self.queue)

    def together(self) -> AbstractContextManager[None]:
        """Steps stay single: in a cluster, a reply and a queue live on different servers."""
        return nullcontext()

    def close(self) -> None:
        """Let go of the connections that are not in use."""
        self.queue.link.close()


class AsyncRedisStore:
    """A queue reached through a client of `redis.asyncio`."""

    steps: ClassVar[Steps] = "awaited"
    limits = Limits()
    capabilities = Capabilities()

    def __init__(self, queue: Queue, look_interval: float = 1.0) -> None:
        self.queue = queue
        self.name = queue.name
        self.look_interval = look_interval
        self.clock: Clock = SystemClock()

    def put(self, messages: Sequence[Outgoing]) -> Awaitable[None]:
        """Add the messages, all or none; known ids are left as they are."""
        return drive_async(self.queue.put(messages))

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Awaitable[Leases]:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        return drive_async(self.queue.lease(count, seconds, acknowledge, ids))

    def acknowledge(self, handles: Sequence[str]) -> Awaitable[Sequence[bool]]:
        """Remove the messages; False where the lease had ended."""
        return drive_async(self.queue.acknowledge(handles))

    def release(self, handles: Sequence[str], delay: float) -> Awaitable[Sequence[bool]]:
        """Give the messages back, visible after ``delay``; False where the lease had ended."""
        return drive_async(self.queue.release(handles, delay))

    def extend(self, handles: Sequence[str], seconds: float) -> Awaitable[Sequence[bool]]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        return drive_async(self.queue.extend(handles, seconds))

    def purge(self) -> Awaitable[int]:
        """Remove every message, leased ones too, and return how many there were."""
        return drive_async(self.queue.purge())

    def stats(self) -> Awaitable[QueueStats]:
        """Count the messages by state."""
        return drive_async(self.queue.stats())

    def peek(self, limit: int, offset: int = 0) -> Awaitable[Sequence[Seen]]:
        """Look at messages that wait, in the order in which they would be received."""
        return drive_async(self.queue.peek(limit, offset))

    def listen(self) -> "QueueListener":
        """Return a new listener."""
        return QueueListener(self.queue)

    def together(self) -> AbstractContextManager[None]:
        """Steps stay single: in a cluster, a reply and a queue live on different servers."""
        return nullcontext()

    async def close(self) -> None:
        """Let go of the connections that are not in use."""
        self.queue.link.close()


class QueueListener:
    """One blocked consumer, on a connection that is its own while it waits."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._interrupt = Interrupt()

    def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the wake token in this thread, then lease."""
        return drive(self._queue.listen(count, seconds, wait, self._interrupt))

    async def lease_async(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait for the wake token in the event loop, then lease."""
        return await drive_async(self._queue.listen(count, seconds, wait, self._interrupt))

    def interrupt(self) -> None:
        """End the wait in progress, and any later one."""
        self._interrupt.set()

    def close(self) -> None:
        """Nothing is left: the connection went back when the wait was over."""
