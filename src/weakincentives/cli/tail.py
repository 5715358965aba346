"""The command that follows what comes into a queue and goes out of it."""

import math
import time
from collections.abc import Iterator
from typing import Annotated, Any

import typer

from weakincentives.runtime.mailbox import InvalidParameterError, MailboxStats, Peeked
from weakincentives.runtime.mailbox.mailbox import StoreMailbox

from . import output
from .backends import connect_existing, newest_messages
from .queues import (
    DEFAULT_URL,
    JsonOption,
    QueueArgument,
    UrlOption,
    existing_mailbox,
    message_facts,
    show_message,
    stats_facts,
)

__all__ = ["register"]

LOOKED_AT = 100
"""How many of the newest messages each look sees."""
SHORTEST_INTERVAL = 0.05


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(tail)


def tail(
    queue: QueueArgument,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    seconds: Annotated[
        float, typer.Option("--for", help="End after so many seconds.", metavar="SECONDS")
    ] = math.inf,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Follow a queue: print messages as they arrive and leave, without receiving any."""
    if not SHORTEST_INTERVAL <= interval < math.inf:
        raise InvalidParameterError(f"--interval must be {SHORTEST_INTERVAL} s or more")
    with connect_existing(url) as backend:
        box = existing_mailbox(url, backend, queue)
        if not box.capabilities.peeks:
            output.note(f"wink: {queue} cannot be peeked at, so only its counts are shown")
        follower = Follower(box)
        until = time.monotonic() + seconds
        _follow(follower, interval, until, as_json)


def _follow(follower: "Follower", interval: float, until: float, as_json: bool) -> None:
    """Print what each look finds; what is there at first is not news."""
    for _ in follower.look():
        pass
    while time.monotonic() < until:
        time.sleep(min(interval, max(until - time.monotonic(), 0.0)))
        for event in follower.look():
            _print(event, as_json)


class Follower:
    """Compares what waits in a queue with what waited at the last look."""

    def __init__(self, box: StoreMailbox[Any, Any]) -> None:
        self._box = box
        self._known: dict[str, Peeked[Any]] = {}
        self._whole = True
        self._newest = 0.0
        self._stats: MailboxStats | None = None

    def look(self) -> Iterator[dict[str, Any]]:
        """Yield what has happened since the last look."""
        stats = self._box.stats()
        page = newest_messages(self._box, LOOKED_AT, stats.pending) or []
        seen = {one.id: one for one in page}
        whole = len(page) >= stats.pending
        if self._stats is not None:
            yield from self._news(seen, whole)
            before, now = _counts(self._stats), _counts(stats)
            if before != now:
                yield {"event": "counts", **stats_facts(stats)}
        self._known, self._whole, self._stats = seen, whole, stats
        self._newest = max([self._newest, *(one.enqueued_at.timestamp() for one in page)])

    def _news(self, seen: dict[str, Peeked[Any]], whole: bool) -> Iterator[dict[str, Any]]:
        # Of a long queue only the end is seen: what comes into view there may be older.
        fresh = [
            one
            for one in seen.values()
            if one.id not in self._known
            and (self._whole or one.enqueued_at.timestamp() > self._newest)
        ]
        if len(fresh) >= LOOKED_AT:
            yield {"event": "missed", "text": f"{LOOKED_AT} or more arrived; not all are shown"}
        for message in fresh:
            again = message.delivery_count > 0
            yield {"event": "returned" if again else "arrived", "message": message}
        if whole:
            for id in self._known.keys() - seen.keys():
                yield {"event": "left", "id": id}


def _counts(stats: MailboxStats) -> tuple[int, int, int]:
    return stats.pending, stats.in_flight, stats.delayed


def _print(event: dict[str, Any], as_json: bool) -> None:
    message = event.pop("message", None)
    if as_json:
        output.print_json({**event, **(message_facts(message) if message is not None else {})})
        return
    match event["event"]:
        case "arrived" | "returned":
            show_message(message, "+ " if event["event"] == "arrived" else "+ again: ")
        case "left":
            output.print_line(f"- {event['id']}")
        case "counts":
            counts = ", ".join(
                f"{event[name]} {name.replace('_', ' ')}"
                for name in ("pending", "in_flight", "delayed")
            )
            output.print_line(f"= {counts}")
        case _:
            output.print_line(f"… {event['text']}")
