"""Finds what is due in one queue: delays that have elapsed, and leases that have run out.

Delays are found by an index. New leases are not indexed: most are over so soon that the index would
only cost time, and a scan of a few is cheap. If many leases last, they are indexed too.
"""

from typing import Any

import apsw

from .clock import MICRO
from .statements import Queries

__all__ = ["Due"]

FEW = 100
"""Up to this number, all leases are scanned each time."""
INDEX_AFTER_US = MICRO
"""If there are more, those that have lasted this long are indexed."""
INDEX_AT_ONCE = 5000
"""The most leases that one step indexes."""
MANY = 5000
"""If there are more than this, leases are indexed at once."""
WALK_US = 10
"""The pause between two scans of many leases, in microseconds for each lease."""
LONGEST_PAUSE_US = MICRO
"""The longest pause between two scans."""

MEND_EVERY_US = 60 * MICRO
"""How often to look for times that never come, which another program must have written."""

DELAYED, WALKED, INDEXED = 0, 1, 2


class Due:
    """Decides when to scan for leases that have run out."""

    def __init__(self) -> None:
        self.leased = WALKED
        """The mark for new leases: `WALKED` or `INDEXED`."""
        self._walk_at = 0
        self._mend_at = 0
        self._first: float | None = None
        self._front = 0
        self._front_at = 0

    def bring_back(self, connection: apsw.Connection, queries: Queries, now: int) -> int:
        """Move due messages to the end of the line; return how many of them were leased."""
        if now >= self._mend_at:
            self._mend_at = now + MEND_EVERY_US
            _end_odd_times(connection, queries, now)
        walks = now >= self._walk_at
        *times, count = connection.execute(queries["next_due"], (walks, now)).get
        if walks:
            self._walked(connection, queries, now, count)
        if self._walk_at > now:
            times.append(self._walk_at)
        # Another program may have written anything there.
        self._first = min((time for time in times if type(time) in (int, float)), default=None)
        if self._first is None or self._first > now:
            return 0
        due: list[Any] = connection.execute(queries["due"], (now, walks)).fetchall()
        place = connection.execute(queries["next_place"]).get
        wanted = [seq for seq, _, cancelled in due if not cancelled]
        moves = [(place + number, seq) for number, seq in enumerate(wanted)]
        connection.executemany(queries["promote"], moves)
        connection.executemany(queries["unhold"], [(seq,) for seq, _, _ in due])
        return sum(leased for _, leased, _ in due)

    def next_due(self, now: int) -> float | None:
        """Return the seconds until the next held message becomes visible, as of the last look."""
        return None if self._first is None else max(self._first - now, 0) / MICRO

    def _walked(self, connection: apsw.Connection, queries: Queries, now: int, count: int) -> None:
        """Plan the next scan after one of ``count`` leases; index the leases that last."""
        if count <= FEW:
            self.leased = WALKED
            return
        self._walk_at = now + min(count * WALK_US, LONGEST_PAUSE_US)
        if count > MANY:
            self.leased = INDEXED
        front = connection.execute(queries["front"]).get
        if self.leased == INDEXED:
            self._put_into_index(connection, queries, front)
        elif now - self._front_at >= INDEX_AFTER_US:
            # Messages that were undone since then are in line again, and may get new leases there.
            self._put_into_index(connection, queries, min(self._front, front))
            self._front, self._front_at = front, now

    def _put_into_index(self, connection: apsw.Connection, queries: Queries, end: int) -> None:
        """Index the leases of places before ``end``."""
        rows = connection.execute(queries["index_leases"], (end, INDEX_AT_ONCE)).fetchall()
        last = end - 1 if len(rows) < INDEX_AT_ONCE else max(rows)[0]
        connection.execute(queries["note_indexed"], (last,))


def _end_odd_times(connection: apsw.Connection, queries: Queries, now: int) -> None:
    """Make messages visible that would never be, and forget ids that would be kept for ever.

    The indexes find them quickly: SQLite sorts everything that is not a number after all numbers.
    """
    for leased in (DELAYED, INDEXED):
        connection.execute(queries["end_odd_times"], (now, leased))
    connection.execute(queries["forget_odd_ids"], (now,))
