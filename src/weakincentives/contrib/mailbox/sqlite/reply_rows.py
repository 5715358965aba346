"""Rows of the table ``reply``: how one is read, and what a lease writes there."""

from typing import Any

import apsw

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.reply_table import JobStart, ReplyRow, ReplyState

from .clock import MICRO, FileClock
from .queries import QUERIES
from .unreadable import as_count, as_time, odd_reply

__all__ = ["row_of", "start_in"]

logger = get_logger(__name__)


def row_of(time: FileClock, id: str, columns: tuple[Any, ...]) -> ReplyRow:
    """Return the reply that these columns tell of, as ``reply_columns`` lists them."""
    state, payload, created_us, expires_us, resolved_us, owner, *rest = columns
    ttl_us, keep_us, handle, worker, deliveries, started_at, series, parts = rest
    now = time.now_us()
    odd = odd_reply(state, payload, created_us, expires_us, resolved_us, owner, now)
    if odd:
        # Nobody can answer it, and nobody can read it.
        logger.warning("reply %.100r has %s and counts as expired", id, odd)
        return ReplyRow(id, ReplyState.EXPIRED, None, time.wall(now), time.wall(now), None)
    over = now >= expires_us
    return ReplyRow(
        id,
        ReplyState.EXPIRED if over else ReplyState(state),
        payload,
        time.wall(created_us),
        time.wall(expires_us),
        None if resolved_us is None else time.wall(resolved_us),
        owner,
        as_count(ttl_us) / MICRO,
        as_count(keep_us) / MICRO,
        _start_of(handle, worker, deliveries, started_at, series),
        as_count(parts),
    )


def _start_of(
    handle: Any, worker: Any, deliveries: Any, started_at: Any, series: Any
) -> JobStart | None:
    if type(handle) is not str or type(worker) is not str:
        return None
    return JobStart(handle, worker, as_count(deliveries), as_time(started_at), as_count(series))


def start_in(
    connection: apsw.Connection, time: FileClock, id: str, owner: str, start: JobStart
) -> ReplyRow | None:
    """Record a start as part of a transaction, and return the row; None if there is none."""
    arguments = (id, owner, start.handle, start.worker, start.deliveries, time.clock.time())
    rows: list[Any] = connection.execute(QUERIES["reply_start"], arguments).fetchall()
    if not rows:
        rows = connection.execute(QUERIES["reply_get"], (id,)).fetchall()
    return row_of(time, id, rows[0]) if rows else None
