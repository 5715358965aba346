"""Handles rows with values that we never write: another program may write to the file.

Such a message is delivered like any other, with its bytes unchanged. It cannot be decoded, so loops
dead-letter it, and it does not block the messages behind it.
"""

from typing import Any

import apsw

from weakincentives.runtime.mailbox.seam.reply_table import ReplyState
from weakincentives.runtime.mailbox.seam.store import Leased, Seen

from .queries import FAR_US, QUERIES

__all__ = [
    "LEASED_ROW_TYPES",
    "as_bytes",
    "as_count",
    "as_text",
    "as_time",
    "is_sound_era",
    "mend_texts",
    "mended",
    "mended_seen",
    "odd_reply",
]

LEASED_ROW_TYPES = (int, int, str, bytes, int, int, float, float, int, type(None))
"""The types of a leased row to which nobody waits for a reply, as we write it."""

LATEST = 253_402_300_799.0
"""The last second of the year 9999, beyond which there is no date."""
LATEST_US = int(LATEST) * 1_000_000

TABLES = (
    *("era", "queue", "waiting", "held", "hole", "known", "reply", "reply_part"),
    *("worker", "paused_queue"),
)
"""Ours: whatever else there is in the file is left alone."""

MOST = 1 << 53
"""Beyond what is ever counted."""

STATES = {ReplyState.PENDING, ReplyState.RESOLVED, ReplyState.FAILED, ReplyState.CANCELLED}
VALUES = {ReplyState.RESOLVED, ReplyState.FAILED}


def mended(row: tuple[Any, ...]) -> Leased:
    """Return a leased row with every field of the type that it should have."""
    seq, token, id, payload, deliveries, nacks, enqueued_at, first_received_at, put_offs, _ = row
    return Leased(
        as_text(id),
        f"{seq}.{token}",
        as_bytes(payload),
        as_count(deliveries),
        as_count(nacks),
        as_time(enqueued_at),
        as_time(first_received_at),
        as_count(put_offs),
    )


def mended_seen(row: tuple[Any, ...]) -> Seen:
    """Do what `mended` does, for a row that was peeked at."""
    id, payload, deliveries, nacks, enqueued_at = row
    return Seen(
        as_text(id), as_bytes(payload), as_count(deliveries), as_count(nacks), as_time(enqueued_at)
    )


def odd_reply(
    state: Any, payload: Any, created: Any, expires: Any, resolved: Any, owner: Any, now: int
) -> str:
    """Describe what is wrong with the values of a reply; '' if nothing is."""
    if state not in STATES:
        return "an unknown state"
    if state in VALUES and type(payload) is not bytes:
        return "a value that is no bytes"
    times = (created, expires, created if resolved is None else resolved)
    if any(type(time) is not int or not 0 <= time <= now + FAR_US for time in times):
        return "an impossible time"
    return "" if owner is None or type(owner) is str else "an owner that is not text"


def is_sound_era(era: tuple[Any, ...]) -> bool:
    """Return whether a row of the table ``era`` has values that we could have written."""
    boot, *times = era
    return type(boot) is str and all(type(one) is int and abs(one) < LATEST_US for one in times)


def mend_texts(connection: apsw.Connection) -> int:
    """Turn every text that is not UTF-8 into bytes; return how many there were.

    SQLite stores any bytes as text, and every query that reads such a row would fail.
    """
    mended = 0
    for table in TABLES:
        for _, column, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
            mended += _mend_column(connection, table, str(column))
    return mended


def _mend_column(connection: apsw.Connection, table: str, column: str) -> int:
    # The names come from our own schema, so this cannot be an SQL injection.
    find, mend = (
        QUERIES[name].replace("{table}", table).replace("{column}", column)
        for name in ("texts", "make_bytes")
    )
    odd = [(text,) for (text,) in connection.execute(find) if not _is_utf8(text)]
    connection.executemany(mend, odd)
    return len(odd)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def as_bytes(value: Any) -> bytes:
    """Return what should be bytes as bytes."""
    return value if type(value) is bytes else str(value).encode("utf-8", "surrogateescape")


def as_text(value: Any) -> str:
    """Return a value that should be text as text."""
    return value.decode("utf-8", "backslashreplace") if type(value) is bytes else str(value)


def as_count(value: Any) -> int:
    """Return what should be a count as one; 0 if it is none."""
    return value if type(value) is int and 0 <= value < MOST else 0


def as_time(value: Any) -> float:
    """Return the value if it is a valid time in seconds since the epoch, else 0.0."""
    return value if type(value) is float and 0 <= value <= LATEST else 0.0
