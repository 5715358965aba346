"""Replies that wait in this process."""

import threading
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives.clock import Clock, SystemClock

from .flow import Steps
from .replies import StoredReplies
from .reply_table import LINGER, ReplyRow, ReplyState
from .waiting import Bell, Ear

__all__ = ["InMemoryReplyStore", "InMemoryReplyTable"]

T = TypeVar("T")


class Entry:
    """A reply, on the clock that does not jump."""

    __slots__ = ("created", "expires", "payload", "resolved", "state")

    def __init__(self, now: float, ttl: float) -> None:
        self.state = ReplyState.PENDING
        self.payload: Any = None
        self.created = now
        self.expires = now + ttl
        self.resolved: float | None = None


class InMemoryReplyTable:
    """A dict under a lock, and a bell for each reply that somebody waits for."""

    steps: ClassVar[Steps] = "inline"
    keeps_objects: ClassVar[bool] = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._lock = threading.Lock()
        self._entries: dict[str, Entry] = {}
        self._bells: dict[str, tuple[Bell, int]] = {}

    def create(self, id: str, ttl: float) -> bool:
        """Add a pending reply; False if the id is taken."""
        with self._lock:
            if id in self._entries:
                return False
            self._entries[id] = Entry(self._clock.monotonic(), ttl)
            return True

    def resolve(self, id: str, payload: Any) -> bool:
        """Store the value if the reply is pending."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._pending(id, now)
            if entry is None:
                return False
            entry.state, entry.payload, entry.resolved = ReplyState.RESOLVED, payload, now
            entry.expires = max(entry.expires, now + LINGER)
        self._ring(id)
        return True

    def cancel(self, id: str) -> bool:
        """Close the reply if it is pending."""
        with self._lock:
            entry = self._pending(id, self._clock.monotonic())
            if entry is None:
                return False
            entry.state = ReplyState.CANCELLED
        self._ring(id)
        return True

    def get(self, id: str) -> ReplyRow | None:
        """Look at a reply."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._entries.get(id)
            return None if entry is None else self._row(id, entry, now)

    def consume(self, id: str) -> ReplyRow | None:
        """Return and remove a resolved reply, to one caller only."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._entries.get(id)
            if entry is None:
                return None
            row = self._row(id, entry, now)
            if row.state != ReplyState.RESOLVED:
                return None
            del self._entries[id]
        self._ring(id)
        return row

    def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        with self._lock:
            gone = self._entries.pop(id, None) is not None
        self._ring(id)
        return gone

    forget = delete

    def scan_expired(self, limit: int) -> list[str]:
        """Return ids of replies whose time is over."""
        now = self._clock.monotonic()
        with self._lock:
            return [id for id, entry in self._entries.items() if now >= entry.expires][:limit]

    def cleanup_expired(self, limit: int) -> int:
        """Remove replies whose time is over and return how many."""
        expired = self.scan_expired(limit)
        return sum(self.delete(id) for id in expired)

    def listen(self, id: str) -> "InMemoryReplyListener":
        """Return a new listener."""
        with self._lock:
            bell, listeners = self._bells.get(id, (Bell(), 0))
            self._bells[id] = (bell, listeners + 1)
        return InMemoryReplyListener(self, id, Ear(bell))

    def unlisten(self, id: str) -> None:
        """Forget the bell of a reply when the last listener is gone."""
        with self._lock:
            bell, listeners = self._bells.pop(id)
            if listeners > 1:
                self._bells[id] = (bell, listeners - 1)

    def look_again(self) -> None:
        """Let everybody who waits look again, because a fake clock has moved."""
        with self._lock:
            bells = list(self._bells.values())
        for bell, _ in bells:
            bell.ring_all()

    def remaining(self, id: str) -> float:
        """Return how long a reply has to live."""
        entry = self._entries.get(id)
        return 0.0 if entry is None else entry.expires - self._clock.monotonic()

    def _ring(self, id: str) -> None:
        bell = self._bells.get(id)
        if bell is not None:
            bell[0].ring_all()

    def _pending(self, id: str, now: float) -> Entry | None:
        entry = self._entries.get(id)
        if entry is None or entry.state != ReplyState.PENDING or now >= entry.expires:
            return None
        return entry

    def _row(self, id: str, entry: Entry, now: float) -> ReplyRow:
        wall = self._clock.time() - now
        return ReplyRow(
            id,
            ReplyState.EXPIRED if now >= entry.expires else entry.state,
            entry.payload,
            wall + entry.created,
            wall + entry.expires,
            None if entry.resolved is None else wall + entry.resolved,
        )


class InMemoryReplyListener:
    """Waits at the bell of one reply."""

    def __init__(self, table: InMemoryReplyTable, id: str, ear: Ear) -> None:
        self._table = table
        self._id = id
        self._ear = ear

    def get(self, wait: float) -> ReplyRow | None:
        """Wait for the bell, then look."""
        row = self._table.get(self._id)
        if row is not None and row.state == ReplyState.PENDING:
            self._ear.wait(min(wait, self._table.remaining(self._id)))
            row = self._table.get(self._id)
        return row

    async def get_async(self, wait: float) -> ReplyRow | None:
        """Wait for the bell in the event loop, then look."""
        row = self._table.get(self._id)
        if row is not None and row.state == ReplyState.PENDING:
            await self._ear.wait_async(min(wait, self._table.remaining(self._id)))
            row = self._table.get(self._id)
        return row

    def close(self) -> None:
        """Leave the bell."""
        self._table.unlisten(self._id)


class InMemoryReplyStore(StoredReplies[T], Generic[T]):
    """A `ReplyStore` for one process; values are kept as they are."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(InMemoryReplyTable(clock))
