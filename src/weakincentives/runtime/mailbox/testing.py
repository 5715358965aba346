"""Test doubles: mailboxes that drop, collect or misbehave on purpose."""

from collections.abc import Sequence
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.ids import new_id

from .memory import InMemoryMailbox
from .memory_replies import InMemoryReplyTable
from .memory_store import InMemoryStore
from .replies import StoredReplies
from .store import Leases, Outgoing, QueueStats, Seen

__all__ = ["CollectingMailbox", "FakeClock", "FakeMailbox", "ImmediateReply", "NullMailbox"]

T = TypeVar("T")
R = TypeVar("R", default=None)


class FakeClock:
    """A clock that moves only when it is told to."""

    def __init__(self, start: float = 1_700_000_000.0) -> None:
        self._now = start

    def monotonic(self) -> float:
        """Return the time that passed by advancing."""
        return self._now

    def time(self) -> float:
        """Return the same time as the wall clock."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds


class NullStore(InMemoryStore):
    """A store in which nothing stays."""

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Drop the messages."""


class NullMailbox(InMemoryMailbox[T, R], Generic[T, R]):
    """Drops what is sent, receives nothing; replies never come."""

    def __init__(self, name: str = "null") -> None:
        super().__init__(name)
        self.store = NullStore(name)


class CollectingMailbox(InMemoryMailbox[T, R], Generic[T, R]):
    """Keeps what was sent in ``sent``, in order, for a test to look at."""

    def __init__(self, name: str = "collecting") -> None:
        super().__init__(name)
        store = self.store = CollectingStore(name)
        self.sent: list[T] = store.sent


class CollectingStore(InMemoryStore):
    """An in-memory store that remembers every body that came in."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.sent: list[Any] = []

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages and remember their bodies."""
        super().put(messages)
        self.sent.extend(message.payload.body for message in messages)


class FakeMailbox(InMemoryMailbox[T, R], Generic[T, R]):
    """A whole in-memory mailbox whose time, leases and connection a test controls."""

    def __init__(self, name: str = "fake", *, max_size: int | None = None) -> None:
        self.clock = FakeClock()
        self._replies = InMemoryReplyTable(self.clock)
        super().__init__(
            name, max_size=max_size, clock=self.clock, reply_store=StoredReplies(self._replies)
        )
        self._fake = self.store = FaultyStore(name, max_size=max_size, clock=self.clock)

    def advance(self, seconds: float) -> None:
        """Let time pass for delays, leases and replies; whoever is blocked looks again."""
        self.clock.advance(seconds)
        self._fake.bell.ring_all()
        self._replies.look_again()

    def expire_handle(self, receipt_handle: str) -> None:
        """End one lease now: its handle is refused, its message is visible again."""
        self._fake.expire(receipt_handle)

    def set_connection_error(self, error: Exception | None) -> None:
        """Let every operation raise ``error`` until it is set to None."""
        self._fake.error = error


class FaultyStore(InMemoryStore):
    """An in-memory store that fails while it is told to."""

    error: Exception | None = None

    def expire(self, handle: str) -> None:
        """End one lease now."""
        with self._lock:
            entry = self._leased.get(handle)
            if entry is not None:
                self._schedule(entry, entry.state, self.clock.monotonic())
        self.bell.ring()

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages."""
        self._check()
        super().put(messages)

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Lease messages."""
        self._check()
        return super().lease(count, seconds, acknowledge=acknowledge, ids=ids)

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove messages."""
        self._check()
        return super().acknowledge(handles)

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give messages back."""
        self._check()
        return super().release(handles, delay)

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Prolong leases."""
        self._check()
        return super().extend(handles, seconds)

    def purge(self) -> int:
        """Remove every message."""
        self._check()
        return super().purge()

    def stats(self) -> QueueStats:
        """Count the messages by state."""
        self._check()
        return super().stats()

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Look at messages that wait."""
        self._check()
        return super().peek(limit, offset)

    def _check(self) -> None:
        if self.error is not None:
            raise self.error


class ImmediateReply(Generic[T]):
    """A `Reply` that is there from the start."""

    def __init__(self, value: T) -> None:
        self.id = new_id()
        self._value = value

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
        """Nothing is left to cancel."""
        return False
