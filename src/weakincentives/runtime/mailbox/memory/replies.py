"""Reply tables and reply stores in the memory of this process."""

import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children, usable_lock
from weakincentives.runtime.mailbox.seam.reply_table import (
    LINGER,
    MOST_PARTS,
    MOST_READ,
    JobStart,
    PartRow,
    ReplyListener,
    ReplyRow,
    ReplyState,
)
from weakincentives.runtime.mailbox.seam.waiting import Bell, Ear

__all__ = ["InMemoryReplyStore", "InMemoryReplyTable"]

T = TypeVar("T")

MOST_SWEPT = 100
"""How many expired replies one creation removes at most."""
SETTLED_FOR_GOOD = (ReplyState.RESOLVED, ReplyState.CANCELLED)


class ReplyRecord:
    """A reply, with times by the monotonic clock."""

    # Of the class until they change: most replies need none of them.
    payload: Any = None
    resolved: float | None = None
    start: JobStart | None = None
    series = 0
    parts: "deque[PartRow] | None" = None

    def __init__(self, now: float, ttl: float, owner: str | None, keep: float) -> None:
        self.state = ReplyState.PENDING
        self.created = now
        self.expires = now + ttl
        self.owner = owner
        self.ttl = ttl
        self.keep = keep

    @property
    def emitted(self) -> int:
        """How many parts were emitted; the last one says it, so that no interrupt divides them."""
        return self.parts[-1].number + 1 if self.parts else 0

    @property
    def read_until(self) -> float:
        """When the reply may be removed: one that expires is kept as one that is settled."""
        return self.expires + (self.keep if self.state == ReplyState.PENDING else 0.0)

    def settle(self, state: ReplyState, now: float) -> None:
        """Leave the pending state for good."""
        if self.keep:
            self.expires = now + max(self.keep, LINGER)
        elif state != ReplyState.CANCELLED:
            self.expires = max(self.expires, now + LINGER)
        self.resolved = now
        self.state = state


class InMemoryReplyTable:
    """Keeps replies in a dict, with a bell for each reply that a caller waits for."""

    steps: ClassVar[Steps] = "inline"
    keeps_objects: ClassVar[bool] = True

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock: Clock = clock if clock is not None else SystemClock()
        # Reentrant, because a signal handler may use the table while its own thread does.
        self._lock: Any = threading.RLock()
        # Ordered, because each creation checks the next few entries and drops expired ones.
        self._entries: OrderedDict[str, ReplyRecord] = OrderedDict()
        self._bells: dict[str, tuple[Bell, int]] = {}
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        """Keep the replies in a forked child, with new locks."""
        self._lock = usable_lock(self._lock)
        for bell, _ in self._bells.values():
            bell.begin_anew()

    async def create(
        self, id: str, ttl: float, owner: str | None = None, keep: float = 0.0
    ) -> bool:
        """Add a pending reply; False if the id is taken."""
        now = self._clock.monotonic()
        with self._lock:
            self._sweep(now)
            if id in self._entries:
                return False
            self._entries[id] = ReplyRecord(now, ttl, owner, keep)
            return True

    async def reopen(self, id: str, ttl: float, owner: str, keep: float = 0.0) -> bool:
        """Make a reply pending again, for a message that is replayed."""
        now = self._clock.monotonic()
        with self._lock:
            old = self._entries.get(id)
            if old is not None and now < old.expires and old.state in SETTLED_FOR_GOOD:
                return False
            self._entries[id] = entry = ReplyRecord(now, ttl, owner, keep)
            if old is not None:
                entry.series, entry.parts = old.series, old.parts
        self._ring(id)
        return True

    async def start(self, id: str, owner: str, start: JobStart) -> ReplyRow | None:
        """Record that a worker has received the message, and return the row."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._pending(id, now)
            if entry is not None and entry.owner in (None, owner):
                last = entry.start
                if last is None or start.deliveries >= last.deliveries:
                    entry.series += 1
                    entry.start = start._replace(at=self._clock.time(), series=entry.series)
            entry = self._entries.get(id)
            return None if entry is None else self._row(id, entry, now)

    async def prolong(self, id: str, seconds: float, owner: str) -> bool:
        """Have a pending reply expire later."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._pending(id, now)
            if entry is None or entry.owner not in (None, owner):
                return False
            entry.expires += seconds
            return True

    async def resolve(
        self, id: str, payload: Any, owner: str | None = None, *, failed: bool = False
    ) -> bool:
        """Settle the reply if it is pending and has no other owner."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._pending(id, now)
            if entry is None or (owner and entry.owner and owner != entry.owner):
                return False
            entry.payload = payload
            entry.settle(ReplyState.FAILED if failed else ReplyState.RESOLVED, now)
        self._ring(id)
        return True

    async def emit(self, id: str, owner: str, handle: str, payloads: Sequence[Any]) -> bool:
        """Add parts; False if the reply is not pending, or this is not its last start."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._pending(id, now)
            if entry is None or entry.start is None or entry.start.handle != handle:
                return False
            if entry.parts is None:
                entry.parts = deque(maxlen=MOST_PARTS)
            for payload in payloads:
                entry.parts.append(PartRow(entry.emitted, entry.start.series, payload))
        self._ring(id)
        return True

    async def parts(self, id: str, first: int, limit: int) -> Sequence[PartRow]:
        """Return the parts from this index on."""
        with self._lock:
            entry = self._entries.get(id)
            if entry is None or not entry.parts:
                return ()
            begin = max(first - entry.parts[0].number, 0)
            return list(itertools.islice(entry.parts, begin, begin + limit))

    async def cancel(self, id: str) -> bool:
        """Cancel the reply if it is pending."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._pending(id, now)
            if entry is None:
                return False
            entry.settle(ReplyState.CANCELLED, now)
        self._ring(id)
        return True

    async def get(self, id: str) -> ReplyRow | None:
        """Return a reply as it is, or None."""
        now = self._clock.monotonic()
        with self._lock:
            entry = self._entries.get(id)
            return None if entry is None else self._row(id, entry, now)

    async def consume(self, id: str) -> ReplyRow | None:
        """Return and remove a resolved reply; only one caller gets it."""
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

    async def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        with self._lock:
            gone = self._entries.pop(id, None) is not None
        self._ring(id)
        return gone

    forget = delete

    async def scan_expired(self, limit: int) -> list[str]:
        """Return the ids of expired replies."""
        now = self._clock.monotonic()
        with self._lock:
            entries = list(self._entries.items())
        return [id for id, entry in entries if now >= entry.read_until][:limit]

    async def cleanup_expired(self, limit: int) -> int:
        """Remove expired replies and return how many."""
        return sum([await self.delete(id) for id in await self.scan_expired(limit)])

    def listen(self, id: str, *, in_loop: bool = False) -> ReplyListener:
        """Return a new listener."""
        with self._lock:
            bell, listeners = self._bells.get(id, (Bell(), 0))
            self._bells[id] = (bell, listeners + 1)
        return InMemoryReplyListener(self, id, Ear(bell), in_loop=in_loop)

    def unlisten(self, id: str) -> None:
        """Forget the bell of a reply when the last listener is gone."""
        with self._lock:
            bell, listeners = self._bells.pop(id)
            if listeners > 1:
                self._bells[id] = (bell, listeners - 1)

    def look_again(self) -> None:
        """Wake every waiter to look again, because a fake clock has moved."""
        with self._lock:
            bells = list(self._bells.values())
        for bell, _ in bells:
            bell.ring_all()

    def remaining(self, id: str) -> float:
        """Return the number of seconds until a reply expires."""
        entry = self._entries.get(id)
        return 0.0 if entry is None else entry.expires - self._clock.monotonic()

    def _sweep(self, now: float) -> None:
        """Drop replies that expired a minute ago, until two are found that have not.

        No listener needs a ring for that: it looks again by itself when its reply expires.
        """
        alive = 0
        for _ in range(min(MOST_SWEPT, len(self._entries))):
            id, entry = next(iter(self._entries.items()))
            if now >= entry.read_until + LINGER:
                del self._entries[id]
                continue
            self._entries.move_to_end(id)
            alive += 1
            if alive == 2:
                break

    def _ring(self, id: str) -> None:
        bell = self._bells.get(id)
        if bell is not None:
            bell[0].ring_all()

    def _pending(self, id: str, now: float) -> ReplyRecord | None:
        entry = self._entries.get(id)
        if entry is None or entry.state != ReplyState.PENDING or now >= entry.expires:
            return None
        return entry

    def _row(self, id: str, entry: ReplyRecord, now: float) -> ReplyRow:
        wall = self._clock.time() - now
        return ReplyRow(
            id,
            ReplyState.EXPIRED if now >= entry.expires else entry.state,
            entry.payload,
            wall + entry.created,
            wall + entry.expires,
            None if entry.resolved is None else wall + entry.resolved,
            entry.owner,
            entry.ttl,
            entry.keep,
            entry.start,
            entry.emitted,
        )


class InMemoryReplyListener:
    """Waits at the bell of one reply."""

    def __init__(self, table: InMemoryReplyTable, id: str, ear: Ear, *, in_loop: bool) -> None:
        self._table = table
        self._id = id
        self._ear = ear
        self._in_loop = in_loop

    async def get(self, wait: float) -> ReplyRow | None:
        """Wait for the bell, then look."""
        row = await self._table.get(self._id)
        if row is not None and row.state == ReplyState.PENDING:
            left = self._table.remaining(self._id)
            await self._ear.hear(min(wait, left), in_loop=self._in_loop)
            row = await self._table.get(self._id)
        return row

    async def get_parts(self, first: int, wait: float) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        """Wait for the bell until there is such a part, then look."""
        row = await self._table.get(self._id)
        if row is not None and row.state == ReplyState.PENDING and row.parts <= first:
            left = self._table.remaining(self._id)
            await self._ear.hear(min(wait, left), in_loop=self._in_loop)
            row = await self._table.get(self._id)
        return row, await self._table.parts(self._id, first, MOST_READ)

    def close(self) -> None:
        """Stop listening."""
        self._table.unlisten(self._id)


class InMemoryReplyStore(StoredReplies[T], Generic[T]):
    """A `ReplyStore` for one process; values are kept as they are."""

    def __init__(self, *, clock: Clock | None = None) -> None:
        super().__init__(InMemoryReplyTable(clock))
