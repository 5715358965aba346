"""What has come due in one queue: delays that have elapsed, and leases that have run out.

Delays are found by an index. Leases are not in it at first, for most are over so soon that it would
only cost: the few that there are, are walked over. Where many last, they are put into an index too.
"""

from typing import Any

import apsw

from .clock import MICRO
from .statements import Queries

__all__ = ["Due"]

FEW = 100
"""Up to this number, all leases are read at each look."""
INDEX_AFTER_US = MICRO
"""Beyond it, leases that have lasted this long are put into the index."""
INDEX_AT_ONCE = 5000
"""The most leases that one step puts into the index."""
MANY = 5000
"""Beyond this number, leases are put into the index without waiting."""
WALK_US = 10
"""The pause between two walks over many leases, for each of them."""
LONGEST_PAUSE_US = MICRO
"""The longest such pause."""

MEND_EVERY_US = 60 * MICRO
"""Times that another program wrote, and that never come, are looked for this often."""

DELAYED, WALKED, INDEXED = 0, 1, 2


class Due:
    """Knows when it is worth while to look for leases that have run out."""

    def __init__(self) -> None:
        self.leased = WALKED
        """How a lease is marked that is taken now."""
        self._walk_at = 0
        self._mend_at = 0
        self._first: float | None = None
        self._front = 0
        self._front_at = 0

    def bring_back(self, connection: apsw.Connection, queries: Queries, now: int) -> int:
        """Move what has come due to the end of the line; return how many of it were leases."""
        if now >= self._mend_at:
            self._mend_at = now + MEND_EVERY_US
            _end_odd_times(connection, queries, now)
        walks = now >= self._walk_at
        *times, count = connection.execute(queries["next_due"], (walks, now)).get
        if walks:
            self._walked(connection, queries, now, count)
        if self._walk_at > now:
            times.append(self._walk_at)
        # Whoever may write to the file may have written anything there.
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
        """Return how many seconds it takes until something held becomes visible, as last seen."""
        return None if self._first is None else max(self._first - now, 0) / MICRO

    def _walked(self, connection: apsw.Connection, queries: Queries, now: int, count: int) -> None:
        """Take note of how many leases were walked over; put them into the index if they last."""
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
            # What was undone since stands in line again, and is leased anew from there.
            self._put_into_index(connection, queries, min(self._front, front))
            self._front, self._front_at = front, now

    def _put_into_index(self, connection: apsw.Connection, queries: Queries, end: int) -> None:
        """Put the leases into the index that stand before this place."""
        rows = connection.execute(queries["index_leases"], (end, INDEX_AT_ONCE)).fetchall()
        last = end - 1 if len(rows) < INDEX_AT_ONCE else max(rows)[0]
        connection.execute(queries["note_indexed"], (last,))


def _end_odd_times(connection: apsw.Connection, queries: Queries, now: int) -> None:
    """Let what would never become visible be visible now, and forget ids kept for ever.

    The indexes lead to them: to SQLite, what is no number comes after every number.
    """
    for leased in (DELAYED, INDEXED):
        connection.execute(queries["end_odd_times"], (now, leased))
    connection.execute(queries["forget_odd_ids"], (now,))
