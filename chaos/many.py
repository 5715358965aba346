"""Much of one kind in a queue, and what each operation then costs.

One harness for the tests, which count work (statements' steps, commands, lines) with few messages,
and for `python -m chaos`, which measures time with many.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

__all__ = ["KINDS", "costs", "fill", "seconds"]

HOUR = 3600.0
CHUNK = 500
PAYLOAD = b"x" * 200

Cost = Callable[[Callable[[], object]], float]
"""Runs an operation and returns what it cost."""


def fill(store: Any, replies: Any, kind: str, count: int) -> None:
    """Bring a queue to where it has so much of this kind."""
    KINDS[kind](store, replies, count)


def _put(store: Any, count: int, **options: Any) -> None:
    for first in range(0, count, CHUNK):
        some = range(first, min(first + CHUNK, count))
        driven(store.put([Outgoing(f"m{n}", PAYLOAD, **options) for n in some]))


def _leased(store: Any, count: int, seconds: float) -> Iterator[list[str]]:
    _put(store, count)
    taken = 0
    while taken < count:
        leases = driven(store.lease(min(CHUNK, count - taken), seconds))
        taken += len(leases.messages)
        yield [message.handle for message in leases.messages]


def waiting(store: Any, replies: Any, count: int) -> None:
    """Messages that can be received."""
    _put(store, count)


def delayed(store: Any, replies: Any, count: int) -> None:
    """Messages sent with a delay."""
    _put(store, count, delay=HOUR)


def nacked(store: Any, replies: Any, count: int) -> None:
    """Messages that failed and are retried later."""
    for handles in _leased(store, count, HOUR):
        driven(store.release(handles, HOUR))


def leased(store: Any, replies: Any, count: int) -> None:
    """Messages that workers hold."""
    for _ in _leased(store, count, HOUR):
        pass


def expired(store: Any, replies: Any, count: int) -> None:
    """Messages whose workers died."""
    for handles in _leased(store, count, HOUR):
        driven(store.extend(handles, 0.001))


def undone(store: Any, replies: Any, count: int) -> None:
    """Messages that workers gave back without having run them."""
    for handles in _leased(store, count, HOUR):
        driven(store.release(handles, 0.0, "undone"))


def remembered(store: Any, replies: Any, count: int) -> None:
    """Ids that senders chose, of messages that are done."""
    _put(store, count, given=True)
    left = count
    while left:
        done = [message.handle for message in driven(store.lease(CHUNK, HOUR)).messages]
        driven(store.acknowledge(done))
        left -= len(done)


def unanswered(store: Any, replies: Any, count: int) -> None:
    """Replies that callers wait for."""
    for number in range(count):
        driven(replies.create(f"r{number}", HOUR))


KINDS: dict[str, Callable[[Any, Any, int], None]] = {
    kind.__name__: kind
    for kind in (waiting, delayed, nacked, leased, expired, undone, remembered, unanswered)
}


def operations(store: Any, replies: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each operation by its name, to be run before the next one is asked for."""
    yield "look", lambda: driven(store.lease(1, HOUR))
    yield "send", lambda: driven(store.put((Outgoing("one", PAYLOAD),)))
    yield "send, id chosen", lambda: driven(store.put((Outgoing("named", PAYLOAD, 0.0, True),)))
    yield "send, delayed", lambda: driven(store.put((Outgoing("later", PAYLOAD, HOUR),)))
    handles: list[str] = []

    def receive() -> None:
        handles.extend(message.handle for message in driven(store.lease(1, HOUR)).messages)

    yield "receive", receive
    yield "extend", lambda: driven(store.extend(handles[:1], HOUR))
    yield "nack", lambda: driven(store.release(handles[:1], 0.0))
    receive()
    yield "nack, delayed", lambda: driven(store.release(handles[-1:], HOUR))
    receive()
    yield "give back undone", lambda: driven(store.release(handles[-1:], 0.0, "undone"))
    receive()
    yield "acknowledge", lambda: driven(store.acknowledge(handles[-1:]))
    yield "stats", lambda: driven(store.stats())
    yield "peek", lambda: driven(store.peek(10))
    yield "ask", lambda: driven(replies.create("asked", HOUR))
    yield "reply", lambda: driven(replies.resolve("asked", PAYLOAD))
    yield "read a reply", lambda: driven(replies.get("asked"))
    yield "forget a reply", lambda: driven(replies.delete("asked"))


def costs(store: Any, replies: Any, cost: Cost, rounds: int = 5) -> dict[str, float]:
    """Return the median cost of each operation."""
    found: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, operation in operations(store, replies):
            found.setdefault(name, []).append(cost(operation))
    return {name: statistics.median(values) for name, values in found.items()}


def seconds(operation: Callable[[], object]) -> float:
    """Return how long an operation took."""
    started = time.perf_counter()
    operation()
    return time.perf_counter() - started
