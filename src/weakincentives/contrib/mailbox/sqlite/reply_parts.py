"""Parts of replies in a SQLite file."""

from collections.abc import Sequence
from typing import Any

import apsw

from weakincentives.runtime.mailbox.seam.reply_table import MOST_PART_BYTES, MOST_PARTS, PartRow

from .queries import QUERIES
from .unreadable import as_bytes, as_count

__all__ = ["emit_in", "part_of"]


def emit_in(
    connection: apsw.Connection, id: str, owner: str, handle: str, payloads: Sequence[bytes]
) -> bool:
    """Add parts as part of a transaction.

    False if the reply is not pending, or the handle is not that of its last start.
    """
    rows: list[Any] = connection.execute(QUERIES["reply_emitting"], (id, owner, handle)).fetchall()
    if not rows:
        return False
    series, count, size = map(as_count, rows[0])
    added = []
    for payload in payloads:
        added.append((id, count, series, size, payload))
        count, size = count + 1, size + len(payload)
    connection.executemany(QUERIES["add_part"], added)
    connection.execute(QUERIES["note_parts"], (id, count, size))
    if count > MOST_PARTS or size > MOST_PART_BYTES:
        oldest = (id, count - MOST_PARTS, size - MOST_PART_BYTES)
        connection.execute(QUERIES["drop_parts"], oldest)
    return True


def part_of(row: tuple[Any, ...]) -> PartRow:
    """Return a part whose number is sound, with the rest of the type that it should have."""
    number, series, payload = row
    return PartRow(number, as_count(series), as_bytes(payload))
