"""Looks for what will hurt in the queues of any backend."""

from collections.abc import Iterator, Sequence
from typing import Any

from weakincentives.contrib.mailbox.finding import Finding
from weakincentives.runtime.mailbox import (
    MailboxError,
    MailboxStats,
    Peeked,
    SerializationError,
    WorkerInfo,
)
from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.runtime.mailbox.workers import is_silent, lease_is_over

from .backends import store_mailbox
from .output import counted, duration

__all__ = ["findings"]

UNSERVED_SECONDS = 60.0
"""How long a message may wait before a queue that nobody serves is worth a word."""
MANY_DELIVERIES = 10
LONG_HELD_SECONDS = 3600.0
PEEKED = 10
OF_LETTERS = {"last_error_type", "dead_lettered_at", "source_mailbox"}
"""What tells a dead letter from another message."""


def findings(backend: Backend, queues: Sequence[str]) -> Iterator[Finding]:
    """Yield what will hurt in these queues."""
    workers = _workers(backend)
    served = None if workers is None else {loop.mailbox for one in workers for loop in one.loops}
    for queue in queues:
        box = store_mailbox(backend, queue)
        stats = box.stats()
        seen = box.peek(PEEKED) if box.capabilities.peeks and stats.pending else []
        yield from _of_stats(queue, stats)
        yield from _of_messages(queue, stats, seen, served)
    for worker in workers or ():
        yield from _of_worker(worker)


def _workers(backend: Backend) -> list[WorkerInfo] | None:
    """Return the workers that serve the backend; None where that is unknown."""
    try:
        return backend.workers()
    except MailboxError:  # it has no such list, or this user may not read it
        return None


def _of_stats(queue: str, stats: MailboxStats) -> Iterator[Finding]:
    if stats.paused:
        yield Finding(
            "warning",
            "this queue is paused, so nobody receives its messages",
            f"{queue} has {counted(stats.pending, 'message')} waiting",
            f"wink queues says who paused it and why; wink resume {queue}",
        )
    if stats.unreadable:
        yield Finding(
            "warning",
            "records that no worker can receive were set aside",
            f"{queue} has {stats.unreadable} of them",
            "another program wrote into the queue's data; see docs/backends.md",
        )


def _of_messages(
    queue: str, stats: MailboxStats, seen: Sequence[Peeked[Any]], served: set[str] | None
) -> Iterator[Finding]:
    age = stats.oldest_age_seconds or 0.0
    waiting = f"{counted(stats.pending, 'message')}, the oldest {duration(age)} old"
    if seen and _is_letter(seen[0]):
        yield Finding(
            "warning",
            "dead letters wait for a decision",
            f"{queue} has {waiting}",
            f"wink dlq list {queue}",
        )
        return
    idle = stats.in_flight == 0 and queue not in (served or ())
    if stats.pending and idle and not stats.paused and age >= UNSERVED_SECONDS:
        yield Finding(
            "warning",
            "nobody consumes this queue",
            f"{queue} has {waiting}, and " + ("none is leased" if served is None else "no worker"),
            "start a worker for it, or wink purge it",
        )
    often = max(seen, key=lambda one: one.delivery_count, default=None)
    if often is not None and often.delivery_count >= MANY_DELIVERIES:
        yield Finding(
            "warning",
            "a message fails again and again",
            f"{queue}: {often.id} was received {often.delivery_count} times",
            "give the worker a DLQPolicy; look at the message with wink peek",
        )


def _is_letter(message: Peeked[Any]) -> bool:
    try:
        body = message.body
    except SerializationError:
        return False
    return isinstance(body, dict) and body.keys() >= OF_LETTERS


def _of_worker(worker: WorkerInfo) -> Iterator[Finding]:
    if is_silent(worker):
        yield Finding(
            "warning",
            "a worker gives no sign: it was killed, is stopped or cut off",
            f"{worker.host}:{worker.pid} gave the last one {duration(worker.seen_seconds_ago)} ago,"
            f" and held {counted(worker.held, 'message')}",
            "see what has become of it; its messages come back when their leases are over",
        )
        return
    for held in worker.oldest_held:
        who = f"{worker.host}:{worker.pid} has held {held.message_id} of {held.mailbox}"
        if lease_is_over(worker, held):
            yield Finding(
                "warning",
                "a worker goes on with a message whose lease is over; another may have it too",
                f"{who} for {duration(held.held_seconds)}",
                "raise visibility_timeout above what the handler needs, or keep the lease extender",
            )
        elif held.held_seconds > LONG_HELD_SECONDS:
            yield Finding(
                "warning",
                "a handler does not end",
                f"{who} for {duration(held.held_seconds)}",
                "set a time limit for jobs, or end the worker; the message then comes back",
            )
