"""The command that lists who serves the queues."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec
import typer

from weakincentives.runtime.mailbox import HeldMessage, WorkerInfo
from weakincentives.runtime.mailbox.workers import is_silent, lease_is_over

from . import output, tables
from .backends import connect_existing
from .queues import DEFAULT_URL, JsonOption, UrlOption

__all__ = ["register"]

COLUMNS = ("worker", "version", "up", "seen", "mailboxes", "holds", "lag")
HELD_COLUMNS = ("message", "mailbox", "worker", "held", "delivery", "lease left")
MOST_SHOWN = 10
"""How many of the messages that are held are shown to people."""


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(workers)


def workers(url: UrlOption = DEFAULT_URL, as_json: JsonOption = False) -> None:
    """List the processes that serve the queues, and what they hold."""
    with connect_existing(url) as backend:
        found = backend.workers()
    if as_json:
        for worker in found:
            output.print_json(_facts(worker))
    elif not found:
        output.print_line("No worker serves the queues here.")
    else:
        tables.print_table("Workers", COLUMNS, (_row(worker) for worker in found))
        held = sorted(
            ((one, worker) for worker in found for one in worker.oldest_held),
            key=lambda pair: -pair[0].held_seconds,
        )
        if held:
            rows = (_held_row(*pair) for pair in held[:MOST_SHOWN])
            tables.print_table("Held for the longest time", HELD_COLUMNS, rows)


def _facts(worker: WorkerInfo) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(msgspec.json.encode(worker))
    return facts


def _row(worker: WorkerInfo) -> Iterator[object]:
    yield _name(worker)
    yield worker.version
    yield output.duration((datetime.now(UTC) - worker.started_at).total_seconds())
    silent = ", silent" if is_silent(worker) else ""
    yield f"{output.duration(worker.seen_seconds_ago)} ago{silent}"
    yield ", ".join(f"{loop.mailbox} ({loop.concurrency})" for loop in worker.loops)
    yield worker.held
    lags = [loop.lag_seconds for loop in worker.loops if loop.lag_seconds is not None]
    yield f"{max(lags):.1f} s" if lags else None


def _held_row(held: HeldMessage, worker: WorkerInfo) -> Iterator[object]:
    yield held.message_id
    yield held.mailbox
    yield _name(worker)
    yield output.duration(held.held_seconds)
    yield held.delivery_count
    if lease_is_over(worker, held):
        yield "over"
    else:
        left = held.lease_seconds_left
        yield output.duration(left) if left > 0 else None


def _name(worker: WorkerInfo) -> str:
    return f"{worker.host}:{worker.pid}"
