"""One queue on a server: its keys, its calls and what their answers mean; no I/O.

The layout of the keys is told in the headers of the scripts.
"""

from collections.abc import Sequence
from itertools import compress
from math import ceil
from typing import Any

from weakincentives.clock import SystemClock
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import MailboxConnectionError, MailboxFullError
from weakincentives.runtime.mailbox.store import Leased, Leases, Outgoing, QueueStats, Seen

from .calls import Block, Call, Outcome
from .packing import Head, pack
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
ALL_DONE = (True,)


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
        self._put_settings: tuple[Any, ...] = (max_size or 0, 1 if min_replicas else 0, b"")
        self._wait = (
            pack(b"WAIT", min_replicas, milliseconds(REPLICATION_SECONDS)) if min_replicas else None
        )
        self._keep = 0 if retention is None else milliseconds(retention)
        self._put = Head(script("put"), pending, data, delayed, wake, sent)
        self._lease = Head(script("lease"), pending, invisible, data, delayed, wake)
        self._settle = Head(script("settle"), pending, invisible, data, delayed, wake)
        self._purge = Head(script("purge"), pending, invisible, data, delayed, wake)
        self._stats = Head(script("stats"), pending, invisible, delayed)
        self._peek = Head(script("peek"), pending, invisible, delayed, data)
        self._promoted = 0.0
        self._deadlines = Deadlines()

    def put(self, messages: Sequence[Outgoing]) -> Call:
        """Add the messages, all or none; known ids are left as they are."""
        arguments: list[Any] = []
        special = False
        for id, payload, delay, given in messages:
            arguments += (id, payload)
            special = special or given or delay > 0
        if special:
            details = " ".join(f"{milliseconds(m.delay)} {m.given:d}" for m in messages)
            settings = (*self._put_settings[:2], details)
        else:
            settings = self._put_settings
        return Call(self._put, arguments, settings, None, self._wait)

    def put_expecting(self, message: Outgoing, keys: Sequence[bytes], id: str, ttl: float) -> Call:
        """Add a message, and the pending reply to it."""
        call = self.put((message,))
        head = Head(self._put.script, *self._put.keys, *keys)
        return call._replace(head=head, arguments=(*call.arguments, id, milliseconds(ttl)))

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
        settings = (
            count,
            milliseconds(seconds),
            1 if promote else 0,
            1 if woken else 0,
            self._keep,
            0,
            len(acknowledge),
        )
        return Call(self._lease, (new_id(), *acknowledge, *(ids or ())), settings, 5)

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
        answer = outcome.answer
        if answer is None:
            return Leases(())
        acknowledged, expired, dropped, next_due, now = answer[:5]
        at = None
        if outcome.began is not None:
            ours, servers = outcome.began
            at = max(started, min(ours + now / 1000 - servers, monotonic()))
        ends, deadlines = (at or started) + seconds, self._deadlines
        messages = []
        # Plain steps: this is run for every message, with nothing of it left in the cache.
        for i in range(5, len(answer), 2):
            handle = answer[i].decode()
            deadlines[handle] = ends
            id, enqueued, count, nacks, first, _ = handle.split("|")
            times = int(enqueued) / 1000, int(first) / 1000
            messages.append(Leased(id, handle, answer[i + 1], int(count), int(nacks), *times))
        if len(deadlines) > deadlines.prune_at:
            deadlines.prune()
        done = self._done(acknowledged, acknowledge) if acknowledge else ()
        return Leases(
            messages, done, None if next_due < 0 else next_due / 1000, expired, dropped, at
        )

    def settle(self, step: str, handles: Sequence[str], seconds: float = 0) -> Call:
        """Take the step "ack", "release" or "extend" with the handles."""
        return Call(self._settle, handles, (step, milliseconds(seconds), 0), 2)

    def was_acknowledged(self, outcome: Outcome, handles: Sequence[str]) -> Sequence[bool]:
        """Tell for each handle whether its message is gone by our doing."""
        return self._done(outcome.answer, handles)

    def _done(self, answers: bytes, handles: Sequence[str]) -> Sequence[bool]:
        deadlines = self._deadlines
        if answers == b"1":  # most often: one handle, and all is well
            deadlines.pop(handles[0], None)
            return ALL_DONE
        done = []
        for answer, handle in zip(answers, handles, strict=True):
            ends = deadlines.pop(handle, 0.0)
            # Gone before its lease was over: nobody but this holder can have acknowledged it.
            done.append(answer == DONE or (answer == GONE and monotonic() < ends))
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
        self._deadlines.update(dict.fromkeys(compress(handles, done), ends))
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


class Deadlines(dict[str, float]):
    """When the leases taken here run out at the latest, by this machine's own clock."""

    prune_at = 1024

    def holds(self, handle: str) -> bool:
        """Whether the lease cannot have run out yet."""
        return monotonic() < self.get(handle, 0.0)

    def prune(self) -> None:
        """Forget the leases that ran out because nobody settled them."""
        now = monotonic()
        for handle, ends in list(self.items()):
            if ends <= now:
                self.pop(handle, None)
        self.prune_at = max(1024, 2 * len(self))


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up."""
    return ceil(seconds * 1000)


def _seen(record: bytes, payload: bytes) -> Seen:
    id, enqueued, *counts = record.decode().split("|")
    deliveries, nacks = (int(counts[0]), int(counts[1])) if counts else (0, 0)
    return Seen(id, payload, deliveries, nacks, int(enqueued) / 1000)
