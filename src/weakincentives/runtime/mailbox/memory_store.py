"""The Store that lives in this process: no bytes, no threads, exact to the message."""

import heapq
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from weakincentives.clock import Clock, SystemClock

from .errors import MailboxFullError
from .flow import Steps
from .limits import Capabilities, Limits
from .store import Leased, Leases, Outgoing, QueueStats, Seen
from .waiting import Bell, BellListener

__all__ = ["InMemoryStore"]

REMEMBER_IDS = 300.0

PENDING, LEASED, DELAYED, GONE = "pending", "leased", "delayed", "gone"


class Entry:
    """A message and where it is."""

    state = PENDING
    due = 0.0
    handle = ""
    deliveries = 0
    nacks = 0
    first_received_at = 0.0

    def __init__(self, id: str, payload: Any, sent: float, enqueued_at: float) -> None:
        self.id = id
        self.payload = payload
        self.sent = sent
        self.enqueued_at = enqueued_at


class InMemoryStore:
    """Pending messages in a deque; leased and delayed ones in a heap by the time they come due."""

    steps: ClassVar[Steps] = "inline"
    capabilities = Capabilities()
    limits = Limits()

    def __init__(
        self,
        name: str,
        *,
        max_size: int | None = None,
        retention: float | None = None,
        look_interval: float = 1.0,
        clock: Clock | None = None,
    ) -> None:
        self.name = name
        self.look_interval = look_interval
        self.clock: Clock = clock if clock is not None else SystemClock()
        self.bell = Bell()
        self._now = self.clock.monotonic
        self._wall = self.clock.time
        self._max_size = max_size
        self._retention = retention
        self._lock = threading.Lock()
        self._serial = itertools.count()
        self._entries: dict[str, Entry] = {}
        self._leased: dict[str, Entry] = {}
        self._pending: deque[Entry] = deque()
        # (due, serial, entry); an item whose entry has moved on since is skipped when it comes up.
        self._due: list[tuple[float, int, Entry]] = []
        # Ordered: a plain dict is slow to find its first item after many were removed before it.
        self._known_ids: OrderedDict[str, float] = OrderedDict()

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages, all or none; chosen ids that are known are left as they are."""
        now, wall = self._now(), self._wall()
        with self._lock:
            if len(messages) > 1 or messages[0].given:
                messages = self._unknown(messages, now)
            if self._max_size is not None and len(self._entries) + len(messages) > self._max_size:
                raise MailboxFullError(
                    f"{self.name!r} holds {len(self._entries)} of at most {self._max_size} "
                    f"messages, there is no room for {len(messages)} more; nothing was sent"
                )
            for id, payload, delay, given in messages:
                entry = self._entries[id] = Entry(id, payload, now, wall)
                if given:
                    self._known_ids[id] = now
                if delay > 0:
                    self._schedule(entry, DELAYED, now + delay)
                else:
                    self._pending.append(entry)
        self.bell.ring(len(messages))

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        now = self._now()
        with self._lock:
            done = [self._acknowledge(handle, now) for handle in acknowledge] if acknowledge else ()
            expired = self._promote(now) if self._due and self._due[0][0] <= now else 0
            taken, dropped = self._next(count, now) if ids is None else (self._take(ids), 0)
            if not taken:
                return Leases((), done, self._next_due(now), expired, dropped)
            until, wall = now + seconds, self._wall()
            leased = []  # loops rather than comprehensions: those cost a call each in 3.11
            for entry in taken:
                leased.append(self._lease(entry, until, wall))
            if len(self._due) > 128 + 2 * len(self._entries):
                self._compact()
        return Leases(leased, done, None, expired, dropped)

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        now = self._now()
        done = []
        with self._lock:
            for handle in handles:
                done.append(self._acknowledge(handle, now))
        return done

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give the messages back, to the end of the queue, visible after ``delay``."""
        now = self._now()
        with self._lock:
            done = [self._release(handle, delay, now) for handle in handles]
        self.bell.ring(len(done))
        return done

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        now = self._now()
        with self._lock:
            done = []
            for handle in handles:
                entry = self._held(handle, now)
                if entry is not None:
                    self._schedule(entry, LEASED, now + seconds)
                done.append(entry is not None)
            if len(self._due) > 128 + 2 * len(self._entries):
                self._compact()
            return done

    def purge(self) -> int:
        """Remove every message, leased ones too, and return how many there were."""
        with self._lock:
            count = len(self._entries)
            self._entries.clear()
            self._leased.clear()
            self._pending.clear()
            self._due.clear()
            return count

    def stats(self) -> QueueStats:
        """Count the messages by state."""
        now = self._now()
        with self._lock:
            self._promote(now)
            pending, in_flight = len(self._pending), len(self._leased)
            oldest = min((entry.sent for entry in self._pending), default=None)
            delayed = len(self._entries) - pending - in_flight
        return QueueStats(pending, in_flight, delayed, None if oldest is None else now - oldest)

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Look at messages that wait, in the order in which they would be received."""
        now = self._now()
        with self._lock:
            self._promote(now)
            waiting = itertools.islice(self._pending, offset, offset + limit)
            return [Seen(e.id, e.payload, e.deliveries, e.nacks, e.enqueued_at) for e in waiting]

    def listen(self) -> BellListener:
        """Return a new listener."""
        return BellListener(self, self.bell)

    def together(self) -> AbstractContextManager[None]:
        """Steps stay single: no crash can come between them that would leave anything behind."""
        return nullcontext()

    def close(self) -> None:
        """Forget nothing: what was received can still be settled."""

    def _unknown(self, messages: Sequence[Outgoing], now: float) -> list[Outgoing]:
        """Leave out the messages whose id is queued or was sent within five minutes."""
        known = self._known_ids
        while known:
            id, sent = next(iter(known.items()))
            if now - sent < REMEMBER_IDS:
                break  # in the order of insertion: the rest are younger
            del known[id]
        fresh: dict[str, Outgoing] = {}
        for message in messages:
            if message.id not in self._entries and message.id not in known:
                fresh.setdefault(message.id, message)
        return list(fresh.values())

    def _lease(self, entry: Entry, until: float, wall: float) -> Leased:
        count = entry.deliveries = entry.deliveries + 1
        if count == 1:
            entry.first_received_at = wall
        serial = next(self._serial)
        handle = entry.handle = f"{entry.id}.{serial}"
        entry.state = LEASED
        entry.due = until
        self._leased[handle] = entry
        heapq.heappush(self._due, (until, serial, entry))
        # A named tuple made by way of its constructor costs three times as much.
        return tuple.__new__(
            Leased,
            (
                entry.id,
                handle,
                entry.payload,
                count,
                entry.nacks,
                entry.enqueued_at,
                entry.first_received_at,
            ),
        )

    def _held(self, handle: str, now: float) -> Entry | None:
        entry = self._leased.get(handle)
        return entry if entry is not None and now < entry.due else None

    def _acknowledge(self, handle: str, now: float) -> bool:
        entry = self._leased.get(handle)
        if entry is None or now >= entry.due:
            return False
        del self._leased[handle], self._entries[entry.id]
        entry.state = GONE
        if self._due[0][2] is entry:  # the common case, and it leaves nothing to clean up
            heapq.heappop(self._due)
        else:
            entry.payload = None  # the heap keeps the entry until its lease would have ended
        return True

    def _release(self, handle: str, delay: float, now: float) -> bool:
        entry = self._held(handle, now)
        if entry is None:
            return False
        del self._leased[handle]
        entry.nacks += 1
        if delay > 0:
            self._schedule(entry, DELAYED, now + delay)
        else:
            entry.state = PENDING
            self._pending.append(entry)
        return True

    def _schedule(self, entry: Entry, state: str, due: float) -> None:
        entry.state = state
        entry.due = due
        heapq.heappush(self._due, (due, next(self._serial), entry))

    def _compact(self) -> None:
        """Drop what has moved on since, before it outgrows what has not."""
        self._due = [item for item in self._due if _waits(item)]
        heapq.heapify(self._due)

    def _promote(self, now: float) -> int:
        """Make visible what has come due; return how many of it were leases."""
        heap, expired = self._due, 0
        while heap and heap[0][0] <= now:
            item = heapq.heappop(heap)
            if not _waits(item):
                continue
            entry = item[2]
            if entry.state == LEASED:
                del self._leased[entry.handle]
                expired += 1
            entry.state = PENDING
            self._pending.append(entry)
        return expired

    def _next_due(self, now: float) -> float | None:
        heap = self._due
        while heap and not _waits(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] - now if heap else None

    def _next(self, count: int, now: float) -> tuple[list[Entry], int]:
        """Take the next messages, leaving out those older than the retention."""
        pending, retention = self._pending, self._retention
        taken: list[Entry] = []
        dropped = 0
        while pending and len(taken) < count:
            entry = pending.popleft()
            if retention is not None and now - entry.sent > retention:
                entry.state = GONE
                del self._entries[entry.id]
                dropped += 1
            else:
                taken.append(entry)
        return taken, dropped

    def _take(self, ids: Sequence[str]) -> list[Entry]:
        wanted = set(ids)
        taken = [entry for entry in self._pending if entry.id in wanted]
        if taken:
            self._pending = deque(entry for entry in self._pending if entry.id not in wanted)
        return taken


def _waits(item: tuple[float, int, Entry]) -> bool:
    """Whether a scheduled item still stands: its entry has not moved on or been rescheduled."""
    entry = item[2]
    return entry.due == item[0] and (entry.state is LEASED or entry.state is DELAYED)
