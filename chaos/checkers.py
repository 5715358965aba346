"""What must be true of every history; each checker returns what is wrong, in words. No I/O.

Times are those of the clients, so a step of the server lies somewhere between an operation's start
and its end: a violation is reported only if no moment in between would make the history right.
"""

import heapq
import itertools
import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from chaos.history import Op

__all__ = [
    "Snapshot",
    "drained",
    "duplicates",
    "exclusive",
    "fenced",
    "first_in_first_out",
    "lives",
    "lost",
    "percentiles",
    "recoveries",
    "undone",
]

RELEASES = ("nack", "undo")
"""How a message is given back; undone, its next delivery has the same count."""
SLACK = 0.005
"""Seconds by which two clocks of one machine may differ: Redis counts whole milliseconds."""


class Snapshot(NamedTuple):
    """The ids that a store holds, by where they stand."""

    pending: Sequence[str]
    leased: Sequence[str]
    delayed: Sequence[str]
    data: Collection[str] | None = None
    """The ids that have a payload, where that is kept apart."""

    @property
    def ids(self) -> set[str]:
        return {*self.pending, *self.leased, *self.delayed}


@dataclass(frozen=True)
class Delivery:
    """A receive that succeeded, and what became of its lease."""

    op: Op
    earliest_end: float
    """The lease cannot have run out before."""
    latest_ends: Sequence[tuple[float, float]]
    """From when on, and by when the lease has run out for certain: one pair for each extension."""
    released: float
    """When a nack or undo that may have happened began; infinite if there was none."""

    def latest_end(self, at: float) -> float:
        """When the lease ends at the latest, leaving out extensions that began at that time."""
        return max(end for start, end in self.latest_ends if start < at)


def lost(ops: Sequence[Op], remaining: Collection[str], dead: Collection[str] = ()) -> list[str]:
    """Sent with success, and neither acknowledged, nor purged, nor there, nor dead-lettered."""
    gone = {op.id for op in ops if op.op == "ack" and op.outcome != "failed"}
    purges = (op.end for op in ops if op.op == "purge" and op.outcome != "failed")
    purged = max(purges, default=-math.inf)
    return [
        f"lost: {op.id}, sent by {op.client}"
        for op in ops
        if op.op == "send"
        and op.outcome == "ok"
        and op.id not in gone
        and op.id not in remaining
        and op.id not in dead
        and op.start > purged
    ]


def duplicates(ops: Sequence[Op]) -> list[str]:
    """Deliveries beyond 1 + expiries + nacks + receives whose reply was lost."""
    unknown = sum(
        op.op == "lost receive" or (op.op == "receive" and op.outcome == "unknown") for op in ops
    )
    wrong = []
    for id, history in deliveries(ops).items():
        observed = max(len(history), max(delivery.op.count for delivery in history))
        expiries = nacks = 0
        for one, following in itertools.pairwise(history):
            if one.released < math.inf:
                nacks += 1
            elif one.earliest_end <= following.op.end + SLACK:
                expiries += 1
        if observed > 1 + expiries + nacks + unknown:
            wrong.append(
                f"duplicate: {id} was delivered {observed} times with {expiries} expiries, "
                f"{nacks} nacks and {unknown} receives of unknown outcome"
            )
    return wrong


def fenced(ops: Sequence[Op], *, jumps: bool = False) -> list[str]:
    """Stale handles that were accepted, and leases on one message that overlapped.

    With ``jumps`` the server's clock was moved: then only the order of deliveries counts.
    """
    histories = deliveries(ops)
    by_handle = {one.op.handle: one for history in histories.values() for one in history}
    wrong = [] if jumps else _overlaps(histories)
    for op in ops:
        if op.op not in ("ack", *RELEASES, "extend") or op.outcome != "ok":
            continue
        held = by_handle.get(op.handle)
        if held is None:
            wrong.append(f"stale: {op.op} of {op.id} by a handle that nobody was given")
            continue
        later = [
            one
            for one in histories[held.op.id]
            if _in_order(one.op) > _in_order(held.op) and one.op.end < op.start
        ]
        if later:
            wrong.append(f"stale: {op.op} of {op.id} accepted after its next delivery")
        elif not jumps and op.start > held.latest_end(op.start) + SLACK:
            late = op.start - held.latest_end(op.start)
            wrong.append(f"stale: {op.op} of {op.id} accepted {late:.3f} s after its lease")
    return wrong


def _overlaps(histories: Mapping[str, Sequence[Delivery]]) -> list[str]:
    wrong = []
    for id, history in histories.items():
        for one, following in itertools.pairwise(history):
            free = min(one.earliest_end, one.released)
            if following.op.end + SLACK < free:
                wrong.append(
                    f"overlap: {id} was leased again {free - following.op.end:.3f} s "
                    "before its lease could end"
                )
    return wrong


def undone(ops: Sequence[Op]) -> list[str]:
    """Messages delivered after their acknowledgement had succeeded.

    Never right, but a failover may undo what was not replicated: that is shown apart.
    """
    acked: dict[str, float] = {}
    for op in ops:
        if op.op == "ack" and op.outcome == "ok":
            acked[op.id] = min(op.end, acked.get(op.id, math.inf))
    return [
        f"undone: {op.id} was delivered {op.start - acked[op.id]:.3f} s after it was acknowledged"
        for op in ops
        if op.op == "receive" and op.outcome == "ok" and op.start > acked.get(op.id, math.inf)
    ]


def first_in_first_out(ops: Sequence[Op]) -> list[str]:
    """First deliveries that overtook a message sent before theirs."""
    first: dict[str, Op] = {}
    for op in sorted(ops, key=lambda op: op.start):
        if op.op == "receive" and op.outcome == "ok" and op.count == 1:
            first.setdefault(op.id, op)
    sends = [
        op
        for op in ops
        if op.op == "send" and op.outcome == "ok" and not op.seconds and op.id in first
    ]
    wrong, done, slowest = [], [], (-math.inf, -1, "")
    for send in sorted(sends, key=lambda op: (op.start, op.place)):
        mine = first[send.id]
        while done and done[0][0] < send.start:
            _, start, place, id = heapq.heappop(done)
            slowest = max(slowest, (start, place, id))
        if slowest[0] > mine.end or (slowest[0] == mine.start and slowest[1] > mine.place):
            wrong.append(f"order: {send.id} was delivered before {slowest[2]}, sent earlier")
        heapq.heappush(done, (send.end, mine.start, mine.place, send.id))
    return wrong


def exclusive(snapshot: Snapshot) -> list[str]:
    """Ids in two places at once, or twice in one, and records without payload or the reverse."""
    places: dict[str, list[str]] = defaultdict(list)
    for place in ("pending", "leased", "delayed"):
        for id in getattr(snapshot, place):
            places[id].append(place)
    wrong = [f"exclusivity: {id} is {' and '.join(at)}" for id, at in places.items() if len(at) > 1]
    if snapshot.data is not None:
        wrong += [f"ghost: {id} has no payload" for id in places if id not in snapshot.data]
        wrong += [
            f"ghost: payload of {id} is in no state" for id in snapshot.data if id not in places
        ]
    return wrong


def drained(
    ops: Sequence[Op], healed: float, within: float, remaining: Collection[str] = ()
) -> list[str]:
    """Work that was not done so many seconds after everything was well again."""
    wrong = [f"stuck: {id} is still there" for id in remaining]
    settled = {}
    for op in ops:
        if op.op == "ack" and op.outcome == "ok":
            settled.setdefault(op.id, op.end)
    for op in ops:
        if op.op == "send" and op.outcome == "ok" and op.end < healed and op.id in settled:
            late = settled[op.id] - healed
            if late > within:
                wrong.append(f"late: {op.id} was done {late:.1f} s after healing, not {within:g}")
    return wrong


def deliveries(ops: Iterable[Op]) -> dict[str, list[Delivery]]:
    """Return the deliveries of each message in their order."""
    leases: dict[str, list[Op]] = defaultdict(list)
    received: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        if op.op == "receive" and op.outcome == "ok":
            received[op.id].append(op)
        elif op.op in (*RELEASES, "extend") and op.outcome != "failed":
            leases[op.handle].append(op)
    return {
        id: [_delivery(op, leases[op.handle]) for op in sorted(ops, key=_in_order)]
        for id, ops in received.items()
    }


def _in_order(op: Op) -> tuple[int, float]:
    # Deliveries of the same count are told apart by their ends: one that waited began earlier.
    return op.count, op.end


def _delivery(op: Op, changes: Sequence[Op]) -> Delivery:
    earliest, released = op.start + op.seconds, math.inf
    latest = [(-math.inf, op.end + op.seconds)]
    for change in sorted(changes, key=lambda change: change.start):
        if change.op in RELEASES:
            released = min(released, change.start)
        elif change.outcome == "ok":
            # What the last extension says counts, even if it made the lease shorter.
            earliest = change.start + change.seconds
            latest.append((change.start, change.end + change.seconds))
        else:
            earliest = min(earliest, change.start + change.seconds)
            latest.append((change.start, math.inf))
    return Delivery(op, earliest, latest, released)


def lives(ops: Sequence[Op]) -> tuple[list[Op], int]:
    """Tell apart the lives of messages that a repeated send added anew; return how many there were.

    A send whose answer was lost is repeated. If the message was consumed in between, it lives
    twice. Each first delivery begins a life, unless the one before was undone; a message that was
    not sent again has but one.
    """
    undone = {op.handle for op in ops if op.op == "undo" and op.outcome != "failed"}
    latest: dict[str, str] = {}
    resent = {op.id for op in ops if op.op == "resend"}
    life: dict[str, int] = defaultdict(int)
    by_handle: dict[str, str] = {}
    told = []
    for op in ops:
        id = op.id
        if op.op == "receive" and op.outcome == "ok" and id in resent:
            life[id] += op.count == 1 and latest.get(id) not in undone
            latest[id] = op.handle
            id = by_handle[op.handle] = f"{id}#{life[id]}" if life[id] > 1 else id
        elif op.handle:
            id = by_handle.get(op.handle, id)
        told.append(op._replace(id=id))
    return told, sum(count - 1 for count in life.values() if count > 1)


def recoveries(ops: Sequence[Op], fault: str = "kill") -> list[float]:
    """Seconds from each fault of a client to the next delivery of what it held then."""
    histories = deliveries(ops)
    ended = {op.handle: op.end for op in ops if op.op in ("ack", *RELEASES) and op.outcome == "ok"}
    times = []
    for mark in (op for op in ops if op.op == fault):
        for history in histories.values():
            for one, following in itertools.pairwise(history):
                held = one.op.client == mark.id and one.op.end <= mark.start
                settled = ended.get(one.op.handle, math.inf) <= mark.start
                if held and not settled and following.op.end > mark.start:
                    times.append(following.op.end - mark.start)
    return times


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum."""
    if not values:
        return {}
    ranked = sorted(values)
    return {
        "p50": ranked[math.ceil(0.50 * len(ranked)) - 1],
        "p99": ranked[math.ceil(0.99 * len(ranked)) - 1],
        "max": ranked[-1],
    }
