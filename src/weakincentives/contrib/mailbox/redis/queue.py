"""One queue on a server: its keys, its commands and what their answers mean, as flows.

The layout of the keys is told in the headers of the scripts.
"""

import math
from collections.abc import Sequence
from typing import Any

from weakincentives.clock import SystemClock
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import MailboxConnectionError, MailboxFullError
from weakincentives.runtime.mailbox.flow import Flow
from weakincentives.runtime.mailbox.store import Leased, Leases, Outgoing, QueueStats, Seen

from .calls import Block, Call, Outcome
from .link import Link
from .packing import head, pack
from .scripts import script
from .topology import slot_of
from .wire import Interrupt

__all__ = ["Queue"]

PROMOTE_INTERVAL = 0.1
"""What is due is brought back this often, even while there is enough pending."""
REPLICATION_SECONDS = 1.0
"""How long a send waits for its replicas."""
SHORTEST_BLOCK = 0.001
TIMED_LEASES = 10.0
"""For leases shorter than this it matters when, during a wait, they began."""

monotonic = SystemClock.monotonic


class Queue:
    """The flows of one queue, whichever wire they run on."""

    def __init__(
        self,
        link: Link,
        name: str,
        *,
        max_size: int | None,
        retention: float | None,
        min_replicas: int,
    ) -> None:
        self.name = name
        self.link = link
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

    def put(self, messages: Sequence[Outgoing]) -> Flow[None]:
        """Add the messages, all or none; known ids are left as they are."""
        replicas = self._min_replicas
        arguments: list[Any] = [self._max_size or 0, 1 if replicas else 0]
        for id, payload, delay, given in messages:
            arguments += (id, payload, milliseconds(delay) if delay else 0, 1 if given else 0)
        then = pack(b"WAIT", replicas, milliseconds(REPLICATION_SECONDS)) if replicas else None
        call = Call(self._put, arguments, then=then)
        outcome: Outcome = yield from self.link.call(self.slot, call)
        if outcome.answer < 0:
            raise MailboxFullError(
                f"{self.name!r} holds {-1 - outcome.answer} of at most {self._max_size} messages, "
                f"there is no room for {len(messages)} more; nothing was sent"
            )
        if replicas and outcome.after < replicas:
            raise MailboxConnectionError(
                f"{outcome.after} of {replicas} replicas have the message after "
                f"{REPLICATION_SECONDS:g} s: it may be lost if the primary fails now. "
                "Sending it again with the same message_id is safe"
            )

    def lease(
        self,
        count: int,
        seconds: float,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Flow[Leases]:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        if ids is not None and not ids:
            count = 0
        call = self._lease_call(count, seconds, acknowledge, ids or ())
        ends = monotonic() + seconds
        outcome: Outcome = yield from self.link.call(self.slot, call)
        return self._leases(outcome, ends, acknowledge)

    def listen(self, count: int, seconds: float, wait: float, interrupt: Interrupt) -> Flow[Leases]:
        """Wait for the wake token, then lease."""
        if interrupt.is_set:
            return Leases(())
        block = None
        if wait > 0:
            wait = max(wait, SHORTEST_BLOCK)
            timed = seconds < TIMED_LEASES
            block = Block(pack(b"BZPOPMIN", self._wake, f"{wait:.3f}"), wait, interrupt, timed)
        call = self._lease_call(count, seconds, (), (), woken=True)
        started = monotonic()
        outcome: Outcome = yield from self.link.call(self.slot, call, block)
        if outcome.answer is None:
            return Leases(())
        at = None
        if outcome.began is not None:
            ours, servers = outcome.began
            at = max(started, min(ours + outcome.answer[4] / 1000 - servers, monotonic()))
        leases = self._leases(outcome, (at or started) + seconds, ())
        return leases._replace(at=at)

    def acknowledge(self, handles: Sequence[str]) -> Flow[Sequence[bool]]:
        """Remove the messages; False where the lease had ended."""
        outcome: Outcome = yield from self._settled("ack", handles, 0)
        return self._acknowledged(outcome.answer, handles)

    def release(self, handles: Sequence[str], delay: float) -> Flow[Sequence[bool]]:
        """Give the messages back, visible after ``delay``; False where the lease had ended."""
        outcome: Outcome = yield from self._settled("release", handles, delay)
        # A repeat that finds its lease gone before the deadline finds its own first attempt.
        return [
            answer == ONE or (outcome.repeated and self._deadlines.holds(handle))
            for answer, handle in zip(outcome.answer, handles, strict=True)
        ]

    def extend(self, handles: Sequence[str], seconds: float) -> Flow[Sequence[bool]]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        started = monotonic()
        outcome: Outcome = yield from self._settled("extend", handles, seconds)
        done = [answer == ONE for answer in outcome.answer]
        for handle, ok in zip(handles, done, strict=True):
            if ok:
                self._deadlines.set(handle, started + seconds)
        return done

    def purge(self) -> Flow[int]:
        """Remove every message, leased ones too, and return how many there were."""
        outcome: Outcome = yield from self.link.call(self.slot, Call(self._purge))
        return int(outcome.answer)

    def stats(self) -> Flow[QueueStats]:
        """Count the messages by state."""
        outcome: Outcome = yield from self.link.call(self.slot, Call(self._stats))
        pending, leased, delayed, age = outcome.answer
        return QueueStats(pending, leased, delayed, None if age < 0 else age / 1000)

    def peek(self, limit: int, offset: int = 0) -> Flow[Sequence[Seen]]:
        """Look at messages that wait, in the order in which they would be received."""
        call = Call(self._peek, (limit, offset))
        outcome: Outcome = yield from self.link.call(self.slot, call)
        found = iter(outcome.answer)
        return [_seen(record, payload) for record, payload in zip(found, found, strict=True)]

    def _lease_call(
        self,
        count: int,
        seconds: float,
        acknowledge: Sequence[str],
        ids: Sequence[str],
        *,
        woken: bool = False,
    ) -> Call:
        now = monotonic()
        promote = now - self._promoted > PROMOTE_INTERVAL
        if promote:
            self._promoted = now
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
            *ids,
        )
        return Call(self._lease, arguments, repeat=6)

    def _leases(self, outcome: Outcome, ends: float, acknowledge: Sequence[str]) -> Leases:
        acknowledged, expired, dropped, next_due, _, *found = outcome.answer
        pairs = iter(found)
        messages = []
        for member, payload in zip(pairs, pairs, strict=True):
            handle = member.decode()
            id, enqueued, deliveries, nacks, first, _ = handle.split("|")
            self._deadlines.set(handle, ends)
            messages.append(
                Leased(
                    id,
                    handle,
                    payload,
                    int(deliveries),
                    int(nacks),
                    int(enqueued) / 1000,
                    int(first) / 1000,
                )
            )
        return Leases(
            messages,
            self._acknowledged(acknowledged, acknowledge) if acknowledge else (),
            None if next_due < 0 else next_due / 1000,
            expired,
            dropped,
        )

    def _settled(self, step: str, handles: Sequence[str], seconds: float) -> Flow[Outcome]:
        call = Call(self._settle, (step, milliseconds(seconds), 0, *handles), repeat=2)
        return (yield from self.link.call(self.slot, call))

    def _acknowledged(self, answers: bytes, handles: Sequence[str]) -> list[bool]:
        # Gone before its lease was over: nobody but this holder can have acknowledged it.
        done = [
            answer == ONE or (answer == TWO and self._deadlines.holds(handle))
            for answer, handle in zip(answers, handles, strict=True)
        ]
        for handle in handles:
            self._deadlines.forget(handle)
        return done


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


ONE, TWO = b"12"


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up."""
    return math.ceil(seconds * 1000)


def _seen(record: bytes, payload: bytes) -> Seen:
    id, enqueued, *counts = record.decode().split("|")
    deliveries, nacks = (int(counts[0]), int(counts[1])) if counts else (0, 0)
    return Seen(id, payload, deliveries, nacks, int(enqueued) / 1000)
