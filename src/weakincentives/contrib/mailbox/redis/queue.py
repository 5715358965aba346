"""One queue on a server: its keys, its calls and what their answers mean; no I/O.

The headers of the scripts describe the keys.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import compress
from math import ceil
from typing import Any, Literal

from weakincentives.clock import SystemClock
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import (
    MailboxConnectionError,
    MailboxFullError,
    PayloadTooLargeError,
    QueueNotEmptyError,
)
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState, NewReply
from weakincentives.runtime.mailbox.seam.store import (
    REMEMBER_IDS,
    GivingBack,
    Leased,
    Leases,
    Outgoing,
    QueueStats,
    Seen,
)

from .connection import Interrupt
from .redis_py import slot_of
from .resp import Head, pack
from .script_call import Block, Call, Outcome
from .scripts import (
    CancelSettings,
    DeleteSettings,
    LeaseSettings,
    PutSettings,
    SettleSettings,
    script,
)

__all__ = ["MOST_SENT", "Queue", "milliseconds"]

PROMOTE_INTERVAL = 0.1
"""Due messages are promoted this often, even while enough messages are pending."""
REPLICATION_SECONDS = 1.0
"""How long a send waits for its replicas."""
SHORTEST_BLOCK = 0.001
TIMED_LEASES = 10.0
"""For leases shorter than this, the time during a wait at which they began is measured."""

monotonic = SystemClock.monotonic

Settling = Literal["ack", "extend"] | GivingBack

PARTS = ("pending", "invisible", "data", "delayed", "wake", "sent", "unreadable", "paused")
DONE, GONE = b"12"
LEASE_STATES: dict[int, LeaseState] = dict(zip(b"012", ("ended", "held", "cancelled"), strict=True))
HEAD = 6
"""The number of values that lease.lua returns before the messages."""
LONGEST_NUMBER = 14
MOST_SENT = 64 * 1024 * 1024
"""The most bytes in a batch: one that takes longer to send than the timeout is never stored."""
ALL_DONE = (True,)
ACK = SettleSettings("ack")


class Queue:
    """Makes the script calls of one queue, and interprets their outcomes."""

    def __init__(
        self, name: str, *, max_size: int | None, retention: float | None, min_replicas: int
    ) -> None:
        self.name = name
        keys = {part: f"{{queue:{name}}}:{part}".encode() for part in PARTS}

        def head(name: str) -> Head:
            found = script(name)
            return Head(found, *(keys[part] for part in found.keys if part in keys))

        self.slot = slot_of(keys["pending"])
        self._wake = keys["wake"]
        self._max_size = max_size
        self._min_replicas = min_replicas
        self._put_settings = PutSettings(max_size or 0, 1 if min_replicas else 0)
        self._wait = (
            pack(b"WAIT", min_replicas, milliseconds(REPLICATION_SECONDS)) if min_replicas else None
        )
        self._keep = 0 if retention is None else milliseconds(retention)
        self._put, self._lease, self._settle = head("put"), head("lease"), head("settle")
        self._purge, self._delete, self._forget_soon = map(head, ("purge", "delete", "forget_soon"))
        self._stats, self._peek = head("stats"), head("peek")
        self._cancel, self._lease_states = head("cancel"), head("lease_states")
        self._taken = f"{{queue:{name}}}:taken:"
        self._promoted = 0.0
        self._deadlines = Deadlines()

    def put(self, messages: Sequence[Outgoing]) -> Call:
        """Add the messages, all or none; known ids are left as they are."""
        arguments: list[Any] = []
        special = False
        for id, payload, delay, given, _, _ in messages:
            arguments += (id, payload)
            special = special or given or delay > 0
        if len(messages) > 1:
            _check_size(messages)
        if special:
            details = " ".join(
                f"{milliseconds(m.delay)} {milliseconds(m.remember) if m.given else 0}"
                for m in messages
            )
            settings = self._put_settings._replace(details=details)
        else:
            settings = self._put_settings
        return Call(self._put, arguments, settings, self._wait)

    def put_expecting(
        self, messages: Sequence[Outgoing], keys: Sequence[bytes], replies: Sequence[NewReply]
    ) -> Call:
        """Add messages, and the pending reply to each of them."""
        call = self.put(messages)
        head = Head(self._put.script, *self._put.keys, *keys)
        arguments = [*call.arguments]
        for id, ttl, owner, keep in replies:
            arguments += (id, milliseconds(ttl), owner, milliseconds(keep))
        return call._replace(head=head, arguments=arguments)

    def put_reopening(self, message: Outgoing, reopening: Call) -> Call:
        """Add a message; if that is done, make the call to its reply."""
        call = self.put((message,))
        head = Head(script("replay"), *self._put.keys, *reopening.head.keys)
        return call._replace(head=head, arguments=(*call.arguments, *reopening.arguments))

    def was_put(self, outcome: Outcome, messages: Sequence[Outgoing]) -> int:
        """Return how many were added; raise if there was no room, or too few replicas have them."""
        if outcome.answer < 0:
            raise MailboxFullError(
                f"{self.name!r} holds {-1 - outcome.answer} of at most {self._max_size} messages, "
                f"there is no room for {len(messages)} more; none of these was sent"
            )
        if self._min_replicas and outcome.after < self._min_replicas:
            raise MailboxConnectionError(
                f"{outcome.after} of {self._min_replicas} replicas have the message after "
                f"{REPLICATION_SECONDS:g} s, so it may be lost if the primary fails now; "
                "it is safe to send it again with the same message_id"
            )
        return int(outcome.answer)

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
        if ids is not None and not ids:
            count = 0
        # Whoever wants nothing does not hear of the leases that are found to have ended.
        promote = count > 0 and now - self._promoted > PROMOTE_INTERVAL
        if promote:
            self._promoted = now
        settings = _lease_settings(count, seconds, promote, woken, self._keep, len(acknowledge))
        return Call(self._lease, (new_id(), *acknowledge, *(ids or ())), settings)

    def answer(self, lease: Call, acknowledge: Sequence[str], answers: Mapping[str, Call]) -> Call:
        """Have a lease settle replies too: ``answers`` has the call for each handle."""
        keys, arguments = [*self._lease.keys], [*lease.arguments]
        for number, handle in enumerate(acknowledge, 1):
            if handle in answers:
                call = answers[handle]
                keys += call.head.keys
                arguments += (number, *call.arguments)
        return lease._replace(head=Head(script("answer"), *keys), arguments=arguments)

    def block(self, seconds: float, wait: float, interrupt: Interrupt) -> Block | None:
        """Return the command that waits for the wake token; None if ``wait`` is 0."""
        if wait <= 0:
            return None
        wait = max(wait, SHORTEST_BLOCK)
        command = pack(b"BZPOPMIN", self._wake, f"{wait:.3f}")
        return Block(command, wait, interrupt, timed=seconds < TIMED_LEASES)

    def was_leased(
        self, outcome: Outcome, started: float, seconds: float, acknowledge: Sequence[str] = ()
    ) -> Leases:
        """Return the leases in the answer to a call that was sent at ``started``."""
        answer = outcome.answer
        if answer is None:
            return Leases(())
        acknowledged, expired, dropped, next_due, now, set_aside = answer[:HEAD]
        at = None
        if outcome.began is not None:
            ours, servers = outcome.began
            at = max(started, min(ours + now / 1000 - servers, monotonic()))
        ends, deadlines = (at or started) + seconds, self._deadlines
        messages = []
        # Plain code without helpers, because it runs for every message.
        for i in range(HEAD, len(answer), 2):
            handle = answer[i].decode()
            deadlines[handle] = ends
            id, enqueued, count, nacks, first, *more = handle.split("|")
            times = int(enqueued) / 1000, int(first) / 1000
            put_offs = int(more[0]) if len(more) > 1 else 0
            messages.append(
                Leased(id, handle, answer[i + 1], int(count), int(nacks), *times, put_offs)
            )
        if len(deadlines) > deadlines.prune_at:
            deadlines.prune()
        done = self._done(acknowledged, acknowledge) if acknowledge else ()
        due = None if next_due < 0 else next_due / 1000
        return Leases(messages, done, due, expired, dropped, at, set_aside)

    def settle(self, step: Settling, handles: Sequence[str], seconds: float = 0) -> Call:
        """Acknowledge, extend or give back; ``step`` says which."""
        settings = ACK if step == "ack" else SettleSettings(step, milliseconds(seconds))
        return Call(self._settle, handles, settings)

    def put_off(self, handle: str, seconds: float, prolonging: Call) -> Call:
        """Give a message back as put off; if that is done, make the call to its reply."""
        head = Head(script("put_off"), *self._settle.keys, *prolonging.head.keys)
        settings = SettleSettings("put_off", milliseconds(seconds))
        return Call(head, (handle, *prolonging.arguments), settings)

    def was_acknowledged(self, outcome: Outcome, handles: Sequence[str]) -> Sequence[bool]:
        """Return, for each handle, whether this call removed its message."""
        return self._done(outcome.answer, handles)

    def _done(self, answers: bytes, handles: Sequence[str]) -> Sequence[bool]:
        deadlines = self._deadlines
        if answers == b"1":  # the common case: one handle, acknowledged
            deadlines.pop(handles[0], None)
            return ALL_DONE
        done = []
        for answer, handle in zip(answers, handles, strict=True):
            ends = deadlines.pop(handle, 0.0)
            # If it is gone before its lease was over, only this holder can have acknowledged it.
            done.append(answer == DONE or (answer == GONE and monotonic() < ends))
        return done

    def was_released(self, outcome: Outcome, handles: Sequence[str]) -> Sequence[bool]:
        """Return, for each handle, whether its message was given back."""
        # If a repeat finds the lease gone before its deadline, the first attempt has released it.
        return [
            answer == DONE or (outcome.repeated and self._deadlines.holds(handle))
            for answer, handle in zip(outcome.answer, handles, strict=True)
        ]

    def was_extended(self, outcome: Outcome, handles: Sequence[str], ends: float) -> Sequence[bool]:
        """Return, for each handle, whether its lease was extended."""
        done = [answer == DONE for answer in outcome.answer]
        self._deadlines.update(dict.fromkeys(compress(handles, done), ends))
        return done

    def cancel(self, ids: Sequence[str]) -> Call:
        """Cancel messages; their payloads are kept for a repeat of this very call."""
        taken = (self._taken + new_id()).encode()
        head = Head(self._cancel.script, *self._cancel.keys, taken)
        return Call(head, ids, CancelSettings())

    def cancel_further(self, call: Call, ids: Sequence[str], begin: int) -> Call:
        """Look further for the records of messages that a call has cancelled."""
        return call._replace(arguments=ids, settings=CancelSettings(begin))

    def lease_states(self, handles: Sequence[str]) -> Call:
        """Ask what has become of leases."""
        return Call(self._lease_states, handles)

    def were_held(self, outcome: Outcome) -> Sequence[LeaseState]:
        """Return what has become of each lease."""
        return [LEASE_STATES[answer] for answer in outcome.answer]

    def purge(self) -> Call:
        """Remove every message; the outcome is how many there were."""
        return Call(self._purge)

    def delete(self, force: bool) -> Call:
        """Remove all that there is of the queue, unless it has messages."""
        return Call(self._delete, (), DeleteSettings(1 if force else 0))

    def was_deleted(self, outcome: Outcome) -> bool:
        """Return whether there was something; raise if there are messages."""
        found, *counts = outcome.answer
        if counts:
            raise QueueNotEmptyError(self.name, *counts)
        return bool(found)

    def forget_soon(self, ids: Sequence[str]) -> Call:
        """Forget these ids after five minutes if they would be remembered for longer."""
        return Call(self._forget_soon, (milliseconds(REMEMBER_IDS), *ids))

    def stats(self) -> Call:
        """Count the messages by state."""
        return Call(self._stats)

    def was_counted(self, outcome: Outcome) -> QueueStats:
        """Read the counts."""
        pending, leased, delayed, age, unreadable, paused = outcome.answer
        oldest = None if age < 0 else age / 1000
        return QueueStats(pending, leased, delayed, oldest, unreadable, paused == 1)

    def peek(self, limit: int, offset: int) -> Call:
        """Return pending messages without leasing them."""
        return Call(self._peek, (limit, offset))

    def was_seen(self, outcome: Outcome) -> Sequence[Seen]:
        """Read the pending messages."""
        found = iter(outcome.answer)
        return [_seen(record, payload) for record, payload in zip(found, found, strict=True)]


class Deadlines(dict[str, float]):
    """When the leases of this process end at the latest, by this machine's clock."""

    prune_at = 1024

    def holds(self, handle: str) -> bool:
        """Return whether the lease cannot have ended yet."""
        return monotonic() < self.get(handle, 0.0)

    def prune(self) -> None:
        """Forget the leases that ran out unsettled."""
        now = monotonic()
        for handle, ends in list(self.items()):
            if ends <= now:
                self.pop(handle, None)
        self.prune_at = max(1024, 2 * len(self))


@lru_cache(maxsize=64)  # few combinations occur, and a lookup is faster than making them
def _lease_settings(
    count: int, seconds: float, promotes: bool, woken: bool, keeps: int, handles: int
) -> LeaseSettings:
    return LeaseSettings(
        most=count,
        lasts=milliseconds(seconds),
        promotes=1 if promotes else 0,
        woken=1 if woken else 0,
        keeps=keeps,
        repeated=0,
        handles=handles,
    )


def _check_size(messages: Sequence[Outgoing]) -> None:
    size = sum(len(message.payload) for message in messages)
    if size > MOST_SENT:
        raise PayloadTooLargeError(
            f"{len(messages)} messages have {size} bytes together, more than the {MOST_SENT} of "
            f"one step; none of these was sent, send fewer at a time"
        )


def milliseconds(seconds: float) -> int:
    """Return whole milliseconds, rounded up."""
    return ceil(seconds * 1000)


def _seen(record: bytes, payload: bytes) -> Seen:
    # Show whatever another program wrote; what should be a number and is not counts as 0.
    id, enqueued, deliveries, nacks, *_ = (*record.decode("utf-8", "replace").split("|"), *"   ")
    return Seen(id, payload, _number(deliveries), _number(nacks), _number(enqueued) / 1000)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER else 0
