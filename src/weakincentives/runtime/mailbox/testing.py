"""Test doubles: mailboxes that drop, collect or misbehave on purpose."""

from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.memory.mailbox import InMemoryMailbox
from weakincentives.runtime.mailbox.memory.replies import InMemoryReplyTable
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.replies.parts import Part
from weakincentives.runtime.mailbox.replies.status import JobState, JobStatus
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.reply_table import (
    PartRow,
    ReplyListener,
    ReplyRow,
    ReplyState,
)
from weakincentives.runtime.mailbox.seam.store import GivingBack, Leases, Outgoing, QueueStats, Seen

__all__ = ["CollectingMailbox", "FakeClock", "FakeMailbox", "ImmediateReply", "NullMailbox"]

T = TypeVar("T")
R = TypeVar("R", default=None)
V = TypeVar("V")


class FakeClock:
    """A clock that moves only when a test advances it."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        """Return the fake time."""
        return self._now

    def time(self) -> float:
        """Return the same time as the wall clock."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class NullStore(InMemoryStore):
    """A store in which nothing stays."""

    def put_now(self, messages: Sequence[Outgoing]) -> None:
        """Drop the messages."""


class NullReplyTable(InMemoryReplyTable):
    """Replies that never come."""

    def listen(self, id: str, *, in_loop: bool = False) -> ReplyListener:
        """Return a listener that does not wait."""
        return NullReplyListener(self, id)


class NullReplyListener:
    """Shows a pending reply as expired, because it will never be resolved."""

    def __init__(self, table: NullReplyTable, id: str) -> None:
        self._table = table
        self._id = id

    async def get(self, wait: float) -> ReplyRow | None:
        """Look at the reply."""
        row = await self._table.get(self._id)
        if row is not None and row.state == ReplyState.PENDING:
            return row._replace(state=ReplyState.EXPIRED)
        return row

    async def get_parts(self, first: int, wait: float) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        """Look at the reply, which has no parts."""
        return await self.get(wait), ()

    def close(self) -> None:
        """Nothing is held."""


class NullMailbox(InMemoryMailbox[T, R], Generic[T, R]):
    """Drops what is sent, receives nothing; waiting for a reply times out at once."""

    def __init__(self, name: str = "null") -> None:
        super().__init__(name, reply_store=StoredReplies(NullReplyTable()))
        self._use(NullStore(name))


class CollectingMailbox(InMemoryMailbox[T, R], Generic[T, R]):
    """Keeps what was sent in ``sent``, in order, for a test to look at."""

    def __init__(self, name: str = "collecting") -> None:
        super().__init__(name)
        store = CollectingStore(name)
        self._use(store)
        self.sent: list[T] = store.sent


class CollectingStore(InMemoryStore):
    """An in-memory store that remembers every body that came in."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sent: list[Any] = []

    def put_now(self, messages: Sequence[Outgoing]) -> int | None:
        """Add the messages and remember their bodies."""
        added = super().put_now(messages)
        self.sent.extend(message.payload.body for message in messages)
        return added


class FakeMailbox(InMemoryMailbox[T, R], Generic[T, R]):
    """A whole in-memory mailbox whose time, leases and connection a test controls."""

    def __init__(self, name: str = "fake", *, max_size: int | None = None) -> None:
        self.clock = FakeClock()
        self._fake_replies = InMemoryReplyTable(self.clock)
        super().__init__(
            name, max_size=max_size, clock=self.clock, reply_store=StoredReplies(self._fake_replies)
        )
        self._fake = FaultyStore(name, max_size=max_size, clock=self.clock)
        self._use(self._fake)

    def advance(self, seconds: float) -> None:
        """Let time pass for delays, leases and replies; blocked consumers look again."""
        self.clock.advance(seconds)
        self._fake.bell.ring_all()
        self._fake_replies.look_again()

    def expire_handle(self, receipt_handle: str) -> None:
        """End one lease now: its handle is refused, its message is visible again."""
        self._fake.expire(receipt_handle)

    def set_connection_error(self, error: Exception | None) -> None:
        """Make every operation raise ``error`` until it is set to None."""
        self._fake.error = error


class FaultyStore(InMemoryStore):
    """An in-memory store that raises ``error`` while one is set."""

    error: Exception | None = None

    def expire(self, handle: str) -> None:
        """End one lease now."""
        with self._lock:
            entry = self._leased.get(handle)
            if entry is not None:
                now = self.clock.monotonic()
                self._schedule(entry, now)
                entry.due = now
        self.bell.ring()

    def put_now(self, messages: Sequence[Outgoing]) -> int | None:
        """Add the messages."""
        self._check()
        return super().put_now(messages)

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Lease messages."""
        self._check()
        return super().lease_now(count, seconds, acknowledge=acknowledge, ids=ids)

    def acknowledge_now(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove messages."""
        self._check()
        return super().acknowledge_now(handles)

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        """Give messages back."""
        self._check()
        return await super().release(handles, delay, how)

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Extend leases."""
        self._check()
        return await super().extend(handles, seconds)

    async def purge(self) -> int:
        """Remove every message."""
        self._check()
        return await super().purge()

    async def stats(self) -> QueueStats:
        """Count the messages by state."""
        self._check()
        return await super().stats()

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Return pending messages."""
        self._check()
        return await super().peek(limit, offset)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


class ImmediateReply(Generic[T]):
    """A `Reply` whose value is there from the start."""

    def __init__(self, value: T) -> None:
        self.id = new_id()
        self.message_id = new_id()
        self._value = value
        self._at = datetime.now(UTC)

    def wait(self, *, timeout: float | None = None) -> T:
        """Return the value."""
        return self._value

    async def wait_async(self, *, timeout: float | None = None) -> T:
        """Return the value."""
        return self._value

    def poll(self) -> T | None:
        """Return the value."""
        return self._value

    def is_ready(self) -> bool:
        """Whether the value is there: always."""
        return True

    def is_cancelled(self) -> bool:
        """Whether it was cancelled: never."""
        return False

    def cancel(self) -> bool:
        """Return False: there is nothing to cancel."""
        return False

    def status(self) -> JobStatus:
        """Return that the job is done."""
        return JobStatus(JobState.DONE, 1, self._at, None, None, self.message_id)

    def parts(
        self, *, timeout: float | None = None, start: int = 0, part_type: Any = None
    ) -> Iterator[Part[Any]]:
        """Iterate over nothing: it has no parts."""
        return iter(())

    async def parts_async(
        self, *, timeout: float | None = None, start: int = 0, part_type: Any = None
    ) -> AsyncIterator[Part[Any]]:
        """Iterate over nothing: it has no parts."""
        for part in self.parts():
            yield part


def driven(step: Coroutine[Any, Any, V]) -> V:
    """Run one step of a blocking store and return its result."""
    return run(lambda: step)
