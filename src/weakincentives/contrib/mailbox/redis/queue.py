"""One queue on a server: its keys, its calls and what their answers mean; no I/O.

The layout of the keys is told in the headers of the scripts.
"""

import math
from collections.abc import Sequence
from typing import Any

from weakincentives.clock import SystemClock
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import MailboxConnectionError, MailboxFullError
from weakincentives.runtime.mailbox.store import Leased, Leases, Outgoing, QueueStats, Seen

from .calls import Block, Call, Outcome
from .packing import head, pack
from .scripts import script
from .topology import slot_of
from .wire import Interrupt

__all__ = ["Queue", "milliseconds"]

PROMOTE_INTERVAL = 0.1
"""What is due is brought back this often, even while there is enough pending."""
REPLICATION_SECONDS = 1.0
"""How long a send waits for its replicas."""
SHORTEST_BLOCK = 0.001
TIMED_LEASES = 10.0
"""For leases shorter than this it matters when, during a wait, they began."""

monotonic = SystemClock.monotonic

DONE, GONE = b"12"


class Queue:
    """Makes the calls of one queue and reads their outcomes."""

    def __init__(
        self, name: str, *, max_size: int | None, retention: float | None, min_replicas: int
    ) -> None:
        self.name = name
        pending, invisible, data, delayed, wake, sent = (
            f"{{queue:{name}}}:{part}".encode()
            for part in ("pending", "invisible", "data", "delayed", "wake", "sent")
        )
        self.slot = slot_of(pending)
        self._wake = wake
        self._max_size = max_size
        self._min_replicas = min_replicas
        self._keep = 0 if retention is None else milliseconds(retention)
        self._put = head(script("put"), pending, data, delayed, wake, sent)
        self._lease = head(script("lease"), pending, invisible, data, delayed, wake)
        self._settle = head(script("settle"), pending, invisible, data, delayed, wake)
        self._purge = head(script("purge"), pending, invisible, data, delayed, wake)
        self._stats = head(script("stats"), pending, invisible, delayed)
        self._peek = head(script("peek"), pending, invisible, delayed, data)
        self._promoted = 0.0
        self._deadlines = Deadlines()

    def put(self, messages: Sequence[Outgoing]) -> Call:
        """Add the messages, all or none; known ids are left as they are."""
        replicas = self._min_replicas
        arguments: list[Any] = [self._max_size or 0, 1 if replicas else 0, b""]
        special = False
        for id, payload, delay, given in messages:
            arguments += (id, payload)
            special = special or given or delay > 0
        if special:
            arguments[2] = " ".join(f"{milliseconds(m.delay)} {m.given:d}" for m in messages)
        then = pack(b"WAIT", replicas, milliseconds(REPLICATION_SECONDS)) if replicas else None
        return Call(self._put, arguments, then=then)

    def was_put(self, outcome: Outcome, messages: Sequence[Outgoing]) -> None:
        """Raise if there was no room, or too few replicas have the messages."""
        if outcome.answer < 0:
            raise MailboxFullError(
                f"{self.name!r} holds {-1 - outcome.answer} of at most {self._max_size} messages, "
                f"there is no room for {len(messages)} more; nothing was sent"
            )
        if self._min_replicas and outcome.after < self._min_replicas:
            raise MailboxConnectionError(
                f"{outcome.after} of {self._min_replicas} replicas have the message after "
                f"{REPLICATION_SECONDS:g} s, so that its fate is unknown if the primary fails now; "
                "sending it again with the same message_id is safe"
            )

    def lease(
        self,
        count: int,
        seconds: float,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
        *,
        woken: bool = False,
    ) -> Call:
        """Acknowledge, then lease up to ``count`` messages."""
        now = monotonic()
        promote = now - self._promoted > PROMOTE_INTERVAL
        if promote:
            self._promoted = now
        if ids is not None and not ids:
            count = 0
        arguments = (
            count,
            milliseconds(seconds),
            new_id(),
            1 if promote else 0,
            1 if woken else 0,
            self._keep,
            0,
            len(acknowledge),
            *acknowledge,
            *(ids or ()),
        )
        return Call(self._lease, arguments, repeat=6)

    def block(self, seconds: float, wait: float, interrupt: Interrupt) -> Block | None:
        """Wait for the wake token before a lease of so many seconds; None for a mere look."""
        if wait <= 0:
            return None
        wait = max(wait, SHORTEST_BLOCK)
        command = pack(b"BZPOPMIN", self._wake, f"{wait:.3f}")
        return Block(command, wait, interrupt, timed=seconds < TIMED_LEASES)

    def was_leased(
        self, outcome: Outcome, started: float, seconds: float, acknowledge: Sequence[str] = ()
    ) -> Leases:
        """Read what a look that ``started`` then brought."""
        if outcome.answer is None:
            return Leases(())
        acknowledged, expired, dropped, next_due, now, *found = outcome.answer
        at = None
        if outcome.began is not None:
            ours, servers = outcome.began
            at = max(started, min(ours + now / 1000 - servers, monotonic()))
        ends = (at or started) + seconds
        pairs = iter(found)
        messages = []
        for member, payload in zip(pairs, pairs, strict=True):
            handle = member.decode()
            self._deadlines.set(handle, ends)
            id, enqueued, deliveries, nacks, first, _ = handle.split("|")
            times = int(enqueued) / 1000, int(first) / 1000
            messages.append(Leased(id, handle, payload, int(deliveries), int(nacks), *times))
        done = self._done(acknowledged, acknowledge) if acknowledge else ()
        due = None if next_due < 0 else next_due / 1000
        return Leases(messages, done, due, expired, dropped, at)

    def settle(self, step: str, handles: Sequence[str], seconds: float = 0) -> Call:
        """Take the step "ack", "release" or "extend" with the handles."""
        return Call(self._settle, (step, milliseconds(seconds), 0, *handles), repeat=2)

    def was_acknowledged(self, outcome: Outcome, handles: Sequence[str]) -> Sequence[bool]:
        """Tell for each handle whether its message is gone by our doing."""
        return self._done(outcome.answer, handles)

    def _done(self, answers: bytes, handles: Sequence[str]) -> Sequence[bool]:
        # Gone before its lease was over: nobody but this holder can have acknowledged it.
        done = [
            answer == DONE or (answer == GONE and self._deadlines.holds(handle))
            for answer, handle in zip(answers, handles, strict=True)
        ]
        for handle in handles:
            self._deadlines.forget(handle)
        return done

    def was_released(self, outcome: Outcome, handles: Sequence[str]) -> Sequence[bool]:
        """Tell for each handle whether its message was given back."""
        # A repeat that finds its lease gone before the deadline finds its own first attempt.
        return [
            answer == DONE or (outcome.repeated and self._deadlines.holds(handle))
            for answer, handle in zip(outcome.answer, handles, strict=True)
        ]

    def was_extended(self, outcome: Outcome, handles: Sequence[str], ends: float) -> Sequence[bool]:
        """Tell for each handle whether its lease now ends then."""
        done = [answer == DONE for answer in outcome.answer]
        for handle, ok in zip(handles, done, strict=True):
            if ok:
                self._deadlines.set(handle, ends)
        return done

    def purge(self) -> Call:
        """Remove every message; the outcome is how many there were."""
        return Call(self._purge)

    def stats(self) -> Call:
        """Count the messages by state."""
        return Call(self._stats)

    def was_counted(self, outcome: Outcome) -> QueueStats:
        """Read the counts."""
        pending, leased, delayed, age = outcome.answer
        return QueueStats(pending, leased, delayed, None if age < 0 else age / 1000)

    def peek(self, limit: int, offset: int) -> Call:
        """Look at messages that wait."""
        return Call(self._peek, (limit, offset))

    def was_seen(self, outcome: Outcome) -> Sequence[Seen]:
        """Read the messages that wait."""
        found = iter(outcome.answer)
        return [_seen(record, payload) for record, payload in zip(found, found, strict=True)]


class Deadlines:
    """When the leases taken here run out at the latest, by this machine's own clock."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}
        self._prune_at = 1024

    def set(self, handle: str, ends: float) -> None:
        """Note a lease, and now and then forget those that nobody settled."""
        self._ends[handle] = ends
        if len(self._ends) > self._prune_at:
            now = monotonic()
            self._ends = {h: end for h, end in list(self._ends.items()) if end > now}
            self._prune_at = max(1024, 2 * len(self._ends))

    def holds(self, handle: str) -> bool:
        """Whether the lease cannot have run out yet."""
        return monotonic() < self._ends.get(handle, 0.0)

    def forget(self, handle: str) -> None:
        """Forget a lease that was settled."""
        self._ends.pop(handle, None)


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up."""
    return math.ceil(seconds * 1000)


def _seen(record: bytes, payload: bytes) -> Seen:
    id, enqueued, *counts = record.decode().split("|")
    deliveries, nacks = (int(counts[0]), int(counts[1])) if counts else (0, 0)
    return Seen(id, payload, deliveries, nacks, int(enqueued) / 1000)
