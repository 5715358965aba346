"""Cancelling single messages, and asking what has become of leases."""

import json
from collections.abc import Mapping, Sequence

import apsw

from weakincentives.runtime.mailbox.errors import MailboxError
from weakincentives.runtime.mailbox.seam.optional_protocols import LeaseState

from . import statements
from .database import Database
from .queries import QUERIES
from .statements import Queries
from .unreadable import as_bytes

__all__ = ["cancel", "lease_states"]

TRIES = 50
"""How often to look again for a message that moves between the look and the transaction."""


def cancel(database: Database, queries: Queries, ids: Sequence[str]) -> list[bytes | None]:
    """Cancel messages, and return their payloads.

    A message whose sender did not choose the id is found by reading over the queue. So it is looked
    for before the write lock is taken, and again if it is at another place by then.
    """
    payloads: dict[str, bytes | None] = {}
    wanted = list(dict.fromkeys(ids))
    for _ in range(TRIES):
        places = _places(database, queries, wanted)
        payloads |= dict.fromkeys(set(wanted) - set(places))
        if places:
            payloads |= database.transact(_cancel_at, queries, places)
        wanted = [id for id in wanted if id not in payloads]
        if not wanted:
            return [payloads.pop(id, None) for id in ids]
    raise MailboxError(
        f"{len(wanted)} of {len(ids)} messages could not be cancelled, because they kept being "
        "received and given back; try again"
    )


def _places(database: Database, queries: Queries, ids: Sequence[str]) -> dict[str, int]:
    places = {}
    for id in ids:
        rows = database.read(queries["find_message"], (id,))
        if rows:
            places[id] = rows[0][0]
    return places


def _cancel_at(
    connection: apsw.Connection, queries: Queries, places: Mapping[str, int]
) -> dict[str, bytes | None]:
    """Cancel the messages that are still there, or were leased from there."""
    payloads: dict[str, bytes | None] = {}
    for id, seq in places.items():
        in_line = connection.execute(queries["payload_in_line"], (seq, id)).fetchall()
        if in_line:
            payloads[id] = as_bytes(in_line[0][0])
            statements.leave_line(connection, queries, [seq])
            continue
        for payload, cancelled, is_free in connection.execute(
            queries["payload_held"], (seq, id)
        ).fetchall():
            payloads[id] = None if cancelled else as_bytes(payload)
            connection.execute(queries["unhold" if is_free else "mark_cancelled"], (seq,))
    return payloads


def lease_states(database: Database, handles: Sequence[str]) -> list[LeaseState]:
    """Return, for each handle, whether its lease is held and its message cancelled."""
    receipts = [statements.parsed(handle) for handle in handles]
    rows = database.read(QUERIES["lease_states"], (json.dumps([seq for seq, _ in receipts]),))
    cancelled = {(seq, token): mark for seq, token, mark in rows}
    return [
        "ended" if receipt not in cancelled else "cancelled" if cancelled[receipt] else "held"
        for receipt in receipts
    ]
