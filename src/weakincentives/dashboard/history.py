"""The counts of queues over time, in a bounded SQLite file that only dashboards use."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from weakincentives.logs import get_logger

__all__ = ["Counts", "History", "Sample"]

logger = get_logger(__name__)

MOST_ROWS = 1_000_000
"""About 50 MB; the oldest go first."""
REPEAT_AFTER = 300
"""Seconds after which counts that did not change are written all the same."""
APPLICATION_ID = 0x776E6B64  # "wnkd"

SCHEMA = """
CREATE TABLE IF NOT EXISTS queue (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS sample (
    queue INTEGER NOT NULL,
    step INTEGER NOT NULL,    -- the seconds that one row stands for
    at INTEGER NOT NULL,      -- seconds since the epoch, a multiple of step
    pending INTEGER NOT NULL,
    in_flight INTEGER NOT NULL,
    delayed INTEGER NOT NULL,
    PRIMARY KEY (queue, step, at)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS sample_at ON sample (step, at);
"""
ADD_QUEUE = "INSERT OR IGNORE INTO queue (name) VALUES (?)"
ADD = (
    "INSERT OR REPLACE INTO sample (queue, step, at, pending, in_flight, delayed) "
    "SELECT id, ?, ?, ?, ?, ? FROM queue WHERE name = ?"
)
READ = (
    "SELECT at, pending, in_flight, delayed FROM sample "
    "WHERE queue = (SELECT id FROM queue WHERE name = ?) AND step = ? AND at >= ? ORDER BY at"
)
DROP_OLD = "DELETE FROM sample WHERE step = ? AND at < ?"
DROP_OLDEST = (
    "DELETE FROM sample WHERE (queue, step, at) IN "
    "(SELECT queue, step, at FROM sample ORDER BY step, at LIMIT ?)"
)


class Step(NamedTuple):
    """How finely counts are kept, and for how long."""

    seconds: int
    keep: int


FINE, COARSE = Step(10, 3600), Step(600, 7 * 86_400)


class Counts(NamedTuple):
    """How many messages a queue held in each state."""

    pending: int
    in_flight: int
    delayed: int


class Sample(NamedTuple):
    """The counts of a queue at one time, in seconds since the epoch."""

    at: int
    counts: Counts


class History:
    """Records the counts of all queues, every ten seconds for an hour and coarser for a week.

    A file that cannot be written is reported once; the dashboard goes on without it.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        now: Callable[[], float] = time.time,
        most_rows: int = MOST_ROWS,
    ) -> None:
        self._now = now
        self._most_rows = most_rows
        self._lock = threading.Lock()
        self._written: dict[tuple[str, int], Sample] = {}
        self._failed = False
        self._connection = _opened(path)
        self._rows = self._count()

    def record(self, counts: Mapping[str, Counts]) -> None:
        """Write what has changed, and drop what is too old."""
        now = self._now()
        with self._lock:
            try:
                with self._connection:
                    for step in (FINE, COARSE):
                        self._add(counts, step, int(now) // step.seconds * step.seconds)
                        self._connection.execute(DROP_OLD, (step.seconds, int(now) - step.keep))
                        self._rows -= self._connection.changes()
                    self._bound()
                self._failed = False
            except apsw.Error as error:
                self._written.clear()
                if not self._failed:
                    logger.warning("the history of the dashboard cannot be written: %s", error)
                self._failed = True

    def read(self, queue: str, seconds: float) -> Sequence[Sample]:
        """Return the samples of the last ``seconds``, oldest first; none if there is no file."""
        step = FINE if seconds <= FINE.keep else COARSE
        first = int(self._now() - seconds)
        with self._lock:
            try:
                found = self._connection.execute(READ, (queue, step.seconds, first))
                rows: list[Any] = found.fetchall()
            except apsw.Error:
                return ()
        return [Sample(at, Counts(*counts)) for at, *counts in rows]

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    def _add(self, counts: Mapping[str, Counts], step: Step, at: int) -> None:
        rows = []
        for name, now in counts.items():
            last = self._written.get((name, step.seconds))
            if last is not None and last.counts == now and at - last.at < REPEAT_AFTER:
                continue
            if last is None or last.at != at:
                self._rows += 1
            self._written[name, step.seconds] = Sample(at, now)
            rows.append((step.seconds, at, *now, name))
        self._connection.executemany(ADD_QUEUE, [(row[-1],) for row in rows])
        self._connection.executemany(ADD, rows)

    def _bound(self) -> None:
        if self._rows <= self._most_rows:
            return
        self._rows = self._count()  # those that were replaced were counted twice
        if self._rows > self._most_rows:
            # A tenth more than needed, so that this is rare.
            too_many = self._rows - self._most_rows + self._most_rows // 10
            self._connection.execute(DROP_OLDEST, (too_many,))
            self._rows -= too_many

    def _count(self) -> int:
        return int(self._connection.execute("SELECT count(*) FROM sample").get)


def _opened(path: Path | None) -> apsw.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.touch(mode=0o600)
    connection = apsw.Connection(":memory:" if path is None else str(path))
    connection.set_busy_timeout(1000)
    connection.execute("PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;")
    connection.execute(f"PRAGMA application_id={APPLICATION_ID};")
    connection.execute(SCHEMA)
    return connection
