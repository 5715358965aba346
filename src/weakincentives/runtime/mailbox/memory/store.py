"""The Store that lives in this process.

A signal handler can run between any two calls here, and raise. So the entry of a message says where
the message is, and changes in one assignment: before that, the entry is added to the containers
that it moves to; after that, it is removed from the others. If an interrupt leaves an entry in one
container too many, the next step removes it.
"""

import heapq
import itertools
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Any, ClassVar

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.errors import MailboxFullError, ReentrantStepError
from weakincentives.runtime.mailbox.limits import Limits
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children, usable_lock
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState
from weakincentives.runtime.mailbox.seam.store import (
    REMEMBER_IDS,
    GivingBack,
    Leased,
    Leases,
    Outgoing,
    QueueStats,
    Seen,
)
from weakincentives.runtime.mailbox.seam.waiting import LATEST_LEASES, Bell, BellListener

from .pauses import InMemoryPauseTable
from .workers import InMemoryWorkerTable

__all__ = ["InMemoryStore"]

PENDING, LEASED, DELAYED, GONE = "pending", "leased", "delayed", "gone"


class Entry:
    """A message, and where it is."""

    state = PENDING
    due = 0.0
    handle = ""
    deliveries = 0
    nacks = 0
    put_offs = 0
    first_received_at = 0.0
    given = False
    remember = 0.0
    is_cancelled = False

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
    backend_key: ClassVar[str] = "memory"

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
        self.share(InMemoryWorkerTable(self.clock), InMemoryPauseTable())
        self._now = self.clock.monotonic
        self._wall = self.clock.time
        self._max_size = max_size
        self._retention = retention
        # Reentrant, so that a signal handler whose thread holds it is refused rather than hangs.
        self._lock: Any = threading.RLock()
        self._in_step = False
        """Whether a step is in progress, or was interrupted."""
        self._serial = 0
        self._entries: dict[str, Entry] = {}
        self._leased: dict[str, Entry] = {}
        self._pending: deque[Entry] = deque()
        # (due, serial, entry); an item whose entry has moved on since is skipped when it comes up.
        self._due: list[tuple[float, int, Entry]] = []
        # An OrderedDict: a plain dict finds its first item slowly once many before it were removed.
        self._known_ids: OrderedDict[str, float] = OrderedDict()
        # The same for ids that are remembered longer: when to forget each.
        self._sequels: OrderedDict[str, float] = OrderedDict()
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        """Keep the messages in a forked child; the next step repairs what a thread left undone."""
        self._lock = usable_lock(self._lock)
        self.bell.begin_anew()

    def share(self, workers: InMemoryWorkerTable, pauses: InMemoryPauseTable) -> None:
        """Use the tables of a backend, which all of its queues share."""
        self.worker_table = workers
        self.pause_table = pauses
        self._paused = pauses.paused
        pauses.join(self)

    def put_now(self, messages: Sequence[Outgoing]) -> int | None:
        """Add the messages, all or none; skip those whose chosen id is known already."""
        now, wall = self._now(), self._wall()
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            # From here on: what is known and how much room there is must stay true until the end.
            self._in_step = True
            id, payload, delay, given, _, _ = messages[0]
            if given or len(messages) > 1:
                messages = self._unknown(messages, now)
            if self._max_size is not None and len(self._entries) + len(messages) > self._max_size:
                self._in_step = False
                raise MailboxFullError(
                    f"{self.name!r} holds {len(self._entries)} of at most {self._max_size} "
                    f"messages: there is no room for {len(messages)} more; none of these was sent"
                )
            if given or delay > 0 or len(messages) > 1:
                self._add(messages, now, wall)
            else:
                entry = Entry(id, payload, now, wall)
                self._pending.append(entry)
                self._entries[id] = entry
            self._in_step = False
        self.bell.ring(len(messages))
        return len(messages)

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        now = self._now()
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            self._in_step = True
            done = [self._acknowledge(handle, now) for handle in acknowledge] if acknowledge else ()
            if self._paused and ids is None and self.name in self._paused:
                self._in_step = False
                return Leases((), done)
            expired = self._promote(now) if self._due and self._due[0][0] <= now else 0
            taken, dropped = self._next(count, now) if ids is None else (self._named(ids), 0)
            if not taken:
                next_due, self._in_step = self._next_due(now), False
                return Leases((), done, next_due, expired, dropped)
            serial = self._serial
            self._serial += len(taken)
            if LATEST_LEASES.store is self:
                # Before the first one is leased. Handles, not entries: when these are undone,
                # another thread may have leased the same entries under other handles.
                numbered = enumerate(taken, serial + 1)
                LATEST_LEASES.handles = [f"{entry.id}.{number}" for number, entry in numbered]
            until, wall, pending = now + seconds, self._wall(), self._pending
            leased = []  # a loop, because a comprehension costs a call in Python 3.11
            for entry in taken:
                serial += 1
                leased.append(self._lease(entry, serial, until, wall))
            if ids is None:
                for _ in taken:
                    pending.popleft()
            else:
                self._pending = deque(entry for entry in pending if entry.state is PENDING)
            if len(self._due) > 128 + 2 * len(self._entries):
                self._compact()
            self._in_step = False
        return Leases(leased, done, None, expired, dropped)

    def acknowledge_now(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        now = self._now()
        done = []
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            self._in_step = True
            for handle in handles:
                done.append(self._acknowledge(handle, now))
            self._in_step = False
        return done

    async def put(self, messages: Sequence[Outgoing]) -> int | None:
        """Do what `put_now` does."""
        return self.put_now(messages)

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Do what `lease_now` does."""
        return self.lease_now(count, seconds, acknowledge=acknowledge, ids=ids)

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Do what `acknowledge_now` does."""
        return self.acknowledge_now(handles)

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``.

        Undone ones go to the front of the queue, in the order of the handles; others to its end.
        """
        now = self._now()
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            self._in_step = True
            if how == "undone":
                done = [self._undo(handle, delay, now) for handle in reversed(handles)][::-1]
            else:
                done = [self._release(handle, delay, now, how) for handle in handles]
            self._in_step = False
        self.bell.ring(len(done))
        return done

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Make the leases end ``seconds`` from now; False where they had ended already."""
        now = self._now()
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            self._in_step = True
            done = []
            for handle in handles:
                entry = self._held(handle, now)
                if entry is not None:
                    self._schedule(entry, now + seconds)
                    entry.due = now + seconds
                done.append(entry is not None)
            if len(self._due) > 128 + 2 * len(self._entries):
                self._compact()
            self._in_step = False
            return done

    async def cancel(self, ids: Sequence[str]) -> Sequence[Any | None]:
        """Remove messages that wait, and mark those that are leased."""
        now = self._now()
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            self._in_step = True
            self._promote(now)
            payloads = [self._cancel(id) for id in ids]
            self._in_step = False
            return payloads

    async def lease_states(self, handles: Sequence[str]) -> Sequence[LeaseState]:
        """Return, for each handle, whether its lease is held and its message cancelled."""
        now = self._now()
        with self._lock:
            held = [self._held(handle, now) for handle in handles]
            return [
                "ended" if entry is None else "cancelled" if entry.is_cancelled else "held"
                for entry in held
            ]

    async def purge(self) -> int:
        """Remove every message, leased ones too, forget all ids, and return how many there were."""
        nothing: tuple[Any, ...] = ({}, {}, deque(), [])
        no_ids: tuple[Any, ...] = (OrderedDict(), OrderedDict())
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            count = len(self._entries)
            self._entries, self._leased, self._pending, self._due = nothing
            self._known_ids, self._sequels = no_ids
            return count

    async def forget_soon(self, ids: Sequence[str]) -> None:
        """Remember these ids for only five more minutes if they would be remembered for longer."""
        now = self._now()
        with self._lock:
            self._forget_soon(ids, now)

    def _forget_soon(self, ids: Sequence[str], now: float) -> None:
        for id in ids:
            if self._sequels.pop(id, None) is not None:
                self._known_ids[id] = now

    async def stats(self) -> QueueStats:
        """Count the messages by state."""
        now = self._now()
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            self._in_step = True
            self._promote(now)
            pending, in_flight = len(self._pending), len(self._leased)
            oldest = min((entry.sent for entry in self._pending), default=None)
            delayed = len(self._entries) - pending - in_flight
            self._in_step = False
        age, paused = None if oldest is None else now - oldest, self.name in self._paused
        return QueueStats(pending, in_flight, delayed, age, paused=paused)

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Return pending messages, in the order in which they would be received."""
        now = self._now()
        if self._in_step:
            self._check_reentry()
        with self._lock:
            if self._in_step:
                self._repair()
            self._in_step = True
            self._promote(now)
            waiting = list(itertools.islice(self._pending, offset, offset + limit))
            self._in_step = False
            return [Seen(e.id, e.payload, e.deliveries, e.nacks, e.enqueued_at) for e in waiting]

    def listen(self, *, in_loop: bool = False) -> BellListener:
        """Return a new listener."""
        return BellListener(self, self.bell, in_loop=in_loop)

    def close(self) -> None:
        """Keep everything: received messages can still be settled."""

    def _check_reentry(self) -> None:
        """Raise if this thread is in the middle of another step."""
        if self._lock._is_owned():
            raise ReentrantStepError(
                f"{self.name!r}: a signal handler or destructor used this queue in the middle of a "
                "step of its own thread; nothing was done. Set a flag there, and act on it later"
            )

    def _repair(self) -> None:
        """Repair the containers after a step that was interrupted."""
        entries = self._entries
        for entry in list(entries.values()):
            if entry.is_cancelled and entry.state is not LEASED:
                self._drop(entry)
        waiting = {entry.id: entry for entry in self._pending if entry.state is PENDING}
        self._pending = deque(e for e in waiting.values() if entries.get(e.id) is e)
        self._due = [item for item in self._due if entries.get(item[2].id) is item[2]]
        heapq.heapify(self._due)
        for entry in entries.values():
            if entry.given and entry.id not in self._known_ids:
                self._know(entry)
        self._in_step = False

    def _know(self, entry: Entry) -> None:
        """Remember an id that a sender chose."""
        if entry.remember > REMEMBER_IDS:
            self._sequels[entry.id] = entry.sent + entry.remember
        else:
            self._known_ids[entry.id] = entry.sent

    def _add(self, messages: Sequence[Outgoing], now: float, wall: float) -> None:
        added: dict[str, Entry] = {}
        for id, payload, delay, given, remember, _ in messages:
            entry = added[id] = Entry(id, payload, now, wall)
            entry.given, entry.remember = given, remember
            if delay > 0:
                entry.state, entry.due = DELAYED, now + delay
                self._schedule(entry, entry.due)
            else:
                self._pending.append(entry)
        self._entries.update(added)
        for entry in added.values():
            if entry.given:
                self._know(entry)

    def _unknown(self, messages: Sequence[Outgoing], now: float) -> list[Outgoing]:
        """Return the messages whose id is not known, each id once."""
        known, sequels = self._known_ids, self._sequels
        _forget(known, now - REMEMBER_IDS)
        _forget(sequels, now)
        fresh: dict[str, Outgoing] = {}
        for message in messages:
            id = message.id
            if id not in self._entries and id not in known and id not in sequels:
                fresh.setdefault(id, message)
        return list(fresh.values())

    def _lease(self, entry: Entry, serial: int, until: float, wall: float) -> Leased:
        heapq.heappush(self._due, (until, serial, entry))
        count = entry.deliveries = entry.deliveries + 1
        if count == 1:
            entry.first_received_at = wall
        handle = entry.handle = f"{entry.id}.{serial}"
        entry.state = LEASED
        entry.due = until
        self._leased[handle] = entry
        # The constructor of a named tuple costs three times as much.
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
                entry.put_offs,
                None,
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
        if self._due[0][2] is entry:  # the common case, which leaves nothing to clean up
            heapq.heappop(self._due)
        else:
            entry.payload = None  # the heap keeps the entry until its lease would have ended
        return True

    def _undo(self, handle: str, delay: float, now: float) -> bool:
        """Give back a message as if it had not been leased."""
        entry = self._held(handle, now)
        if entry is None:
            return False
        if entry.is_cancelled:
            return self._acknowledge(handle, now)
        if delay > 0:
            self._schedule(entry, now + delay)
        else:
            self._pending.appendleft(entry)
        del self._leased[handle]
        entry.deliveries -= 1
        entry.state, entry.due = (DELAYED, now + delay) if delay > 0 else (PENDING, now)
        return True

    def _release(self, handle: str, delay: float, now: float, how: GivingBack) -> bool:
        entry = self._held(handle, now)
        if entry is None:
            return False
        if entry.is_cancelled:
            return self._acknowledge(handle, now)
        if delay > 0:
            self._schedule(entry, now + delay)
        else:
            self._pending.append(entry)
        del self._leased[handle]
        entry.nacks += 1
        entry.put_offs += how == "put_off"
        entry.state, entry.due = (DELAYED, now + delay) if delay > 0 else (PENDING, now)
        return True

    def _schedule(self, entry: Entry, due: float) -> None:
        self._serial += 1
        heapq.heappush(self._due, (due, self._serial, entry))

    def _compact(self) -> None:
        """Remove stale items from the heap, which would outgrow the others."""
        due = [item for item in self._due if _is_current(item)]
        heapq.heapify(due)
        self._due = due

    def _promote(self, now: float) -> int:
        """Make due messages pending; return how many of them were leased."""
        heap, expired = self._due, 0
        while heap and heap[0][0] <= now:
            item = heap[0]
            if _is_current(item):
                entry = item[2]
                if not entry.is_cancelled:
                    self._pending.append(entry)
                if entry.state is LEASED:
                    del self._leased[entry.handle]
                    expired += 1
                if entry.is_cancelled:
                    self._drop(entry)
                else:
                    entry.state = PENDING
            heapq.heappop(heap)
        return expired

    def _next_due(self, now: float) -> float | None:
        heap = self._due
        while heap and not _is_current(heap[0]):
            heapq.heappop(heap)
        return heap[0][0] - now if heap else None

    def _next(self, count: int, now: float) -> tuple[list[Entry], int]:
        """Drop messages that are too old, then return the next ones and how many were dropped."""
        dropped = 0 if self._retention is None else self._drop_old(count, now - self._retention)
        pending = self._pending
        if count == 1:
            return [pending[0]] if pending else [], dropped
        return list(itertools.islice(pending, count)), dropped

    def _drop_old(self, count: int, before: float) -> int:
        """Drop messages that were sent before then and would be next; return how many."""
        pending, dropped = self._pending, 0
        while pending and pending[0].sent < before:
            self._drop(pending[0])
            pending.popleft()
            dropped += 1
        if any(entry.sent < before for entry in itertools.islice(pending, count)):
            # Released messages are behind younger ones: one walk drops all that are too old.
            old = [entry for entry in pending if entry.sent < before]
            for entry in old:
                self._drop(entry)
            self._pending = deque(entry for entry in pending if entry.state is PENDING)
            dropped += len(old)
        return dropped

    def _cancel(self, id: str) -> Any | None:
        entry = self._entries.get(id)
        if entry is None or entry.is_cancelled:
            return None
        state, payload = entry.state, entry.payload
        entry.is_cancelled = True
        if state is not LEASED:
            self._drop(entry)
            if state is PENDING:
                self._pending.remove(entry)
        return payload

    def _drop(self, entry: Entry) -> None:
        del self._entries[entry.id]
        entry.state = GONE

    def _named(self, ids: Sequence[str]) -> list[Entry]:
        wanted = set(ids)
        return [entry for entry in self._pending if entry.id in wanted]


def _forget(known: OrderedDict[str, float], until: float) -> None:
    """Forget the ids at the front that are old enough; those behind them are younger."""
    while known:
        id, when = next(iter(known.items()))
        if when > until:
            break
        del known[id]


def _is_current(item: tuple[float, int, Entry]) -> bool:
    """Whether an item of the heap is current: its entry was neither moved nor rescheduled."""
    entry = item[2]
    return entry.due == item[0] and (entry.state is LEASED or entry.state is DELAYED)
