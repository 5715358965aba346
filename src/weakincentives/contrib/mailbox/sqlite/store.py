"""The Store on SQLite: one queue of a file."""

import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import apsw

from weakincentives.runtime.mailbox.errors import MailboxFullError
from weakincentives.runtime.mailbox.flow import Steps
from weakincentives.runtime.mailbox.limits import Capabilities, Limits
from weakincentives.runtime.mailbox.store import Leased, Leases, Outgoing, QueueStats, Seen
from weakincentives.runtime.mailbox.waiting import BellListener

from .database import Database
from .era import MICRO
from .queries import load_queries
from .wake import Key

__all__ = ["SQLiteStore"]

QUERIES = load_queries()
REMEMBER_IDS_US = 300 * MICRO
HANDLE = re.compile(r"(\d{1,18})\.(-?\d{1,19})", re.ASCII)
NO_MESSAGE = (0, 0)


def queries_of(queue: int) -> Mapping[str, str]:
    """Return the statements for one queue; its bounds are constants in them."""
    base = queue << 40
    facts = {
        **{name: QUERIES[name] for name in ("next_place", "count")},
        "queue": str(queue),
        "base": str(base),
        "mid": str(base + (1 << 39)),
        "top": str(base + (1 << 40)),
    }
    queries = {}
    for name, text in QUERIES.items():
        for fact, value in facts.items():
            text = text.replace(f"{{{fact}}}", value)
        queries[name] = text
    return queries


class SQLiteStore:
    """One queue of a file; see schema.sql for where a message is when."""

    steps: ClassVar[Steps] = "blocking"
    capabilities = Capabilities()
    limits = Limits()

    def __init__(
        self,
        database: Database,
        name: str,
        *,
        max_size: int | None = None,
        retention: float | None = None,
        look_interval: float = 1.0,
    ) -> None:
        self.name = name
        self.clock = database.clock
        self.look_interval = look_interval
        self._database = database
        self._max_size = max_size
        self._retention_us = None if retention is None else int(retention * MICRO)
        self._news: Key = (QUERIES["ready"], name)
        self._queries: Mapping[str, str] | None = None

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages, all or none; known ids are left as they are."""
        queries = self._queries or self._known_queue()
        message = messages[0]
        if (
            len(messages) == 1
            and queries is not None
            and not message.given
            and not message.delay
            and self._max_size is None
        ):
            arguments = (self.clock.time(), message.id, message.payload)
            self._database.change(queries["put"], arguments, self._news)
            return
        with self._database.transaction as connection:
            self._put(connection, queries or self._new_queue(connection), messages)
            self._database.announce(self._news, len(messages))

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease up to ``count`` messages, in one step."""
        queries = self._queries or self._known_queue()
        if queries is None:
            return Leases((), [False] * len(acknowledge))
        with self._database.transaction as connection:
            done = [
                self._settle(connection, queries["acknowledge"], handle) for handle in acknowledge
            ]
            now = self._database.time.now_us()
            expired = self._promote(connection, queries, now)
            until, wall = now + int(seconds * MICRO), self.clock.time()
            dropped = 0
            if ids is not None:
                rows = self._take_by_id(connection, queries, ids, until, wall)
            else:
                if self._retention_us is not None:
                    dropped = self._drop_old(connection, queries, now - self._retention_us, count)
                rows = connection.execute(queries["take"], (until, wall, count)).fetchall()
                if rows:
                    rows.sort()
                    connection.execute(queries["leave_line"], (rows[0][0], rows[-1][0]))
            next_due = None if rows else self._next_due(connection, queries, now)
        leased = [Leased(row[2], f"{row[0]}.{row[1]}", *row[3:]) for row in rows]
        return Leases(leased, done, next_due, expired, dropped)

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        return self._settle_all(QUERIES["acknowledge"], handles)

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give the messages back, to the end of the queue, visible after ``delay``."""
        if not delay:
            done = self._settle_all(QUERIES["release"], handles, 0)
            self._database.announce(self._news, len(done))
            return done
        with self._database.transaction as connection:
            self._database.note_wall_clock(connection)
            done = self._settle_all(QUERIES["release"], handles, int(delay * MICRO))
            # A blocked consumer must learn when it is to look next.
            self._database.announce(self._news, len(done))
            return done

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Let the leases end ``seconds`` from now; False where they had ended already."""
        return self._settle_all(QUERIES["extend"], handles, int(seconds * MICRO))

    def purge(self) -> int:
        """Remove every message, leased ones too, and return how many there were."""
        queries = self._queries or self._known_queue()
        if queries is None:
            return 0
        with self._database.transaction as connection:
            connection.execute(queries["purge_waiting"])
            gone = connection.changes()
            connection.execute(queries["purge_held"])
            return gone + connection.changes()

    def stats(self) -> QueueStats:
        """Count the messages by state; takes time only for what is leased or delayed."""
        queries = self._queries or self._known_queue()
        if queries is None:
            return QueueStats(0, 0, 0, None)
        now = self._database.time.now_us()
        ((line, held, due, leased, oldest),) = self._database.read(queries["stats"], (now,))
        age = None if oldest is None else max(now - oldest, 0) / MICRO
        return QueueStats(line + due, leased, held - due - leased, age)

    def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Look at messages that wait, in the order in which they would be received."""
        queries = self._queries or self._known_queue()
        if queries is None:
            return []
        read = self._database.read
        rows = read(queries["peek"], (limit, offset))
        if len(rows) < limit:
            before = offset + len(rows) - read(queries["count"])[0][0]
            arguments = (self._database.time.now_us(), limit - len(rows), max(before, 0))
            rows += read(queries["peek_due"], arguments)
        return [Seen(*row) for row in rows]

    def listen(self) -> "SQLiteListener":
        """Return a new listener."""
        return SQLiteListener(self, self._database, self._news)

    def together(self) -> AbstractContextManager[Any]:
        """Make the steps taken inside, in this thread, one transaction."""
        return self._database.transaction

    def close(self) -> None:
        """Keep the file open: it belongs to the database, and settling goes on."""

    def _known_queue(self) -> Mapping[str, str] | None:
        """Find the queue. Only what is committed is remembered: the rest may be undone."""
        rows = self._database.read_committed(QUERIES["find_queue"], (self.name,))
        if rows:
            self._queries = queries_of(rows[0][0])
        elif self._database.in_transaction:
            rows = self._database.fetch(QUERIES["find_queue"], (self.name,))
            return queries_of(rows[0][0]) if rows else None
        return self._queries

    def _new_queue(self, connection: apsw.Connection) -> Mapping[str, str]:
        connection.execute(QUERIES["add_queue"], (self.name,))
        return queries_of(connection.execute(QUERIES["find_queue"], (self.name,)).get)

    def _put(
        self,
        connection: apsw.Connection,
        queries: Mapping[str, str],
        messages: Sequence[Outgoing],
    ) -> None:
        now = self._database.time.now_us()
        if any(message.given for message in messages):
            messages = self._unknown(connection, queries, messages, now)
        self._check_room(connection, queries, len(messages))
        wall = self.clock.time()
        line = [message for message in messages if not message.delay]
        if line:
            place = connection.execute(queries["next_place"]).get
            rows = [
                (place + number, message.given, now, wall, message.id, message.payload)
                for number, message in enumerate(line)
            ]
            connection.executemany(queries["put_at"], rows)
        delayed = [message for message in messages if message.delay]
        if delayed:
            self._database.note_wall_clock(connection)
            place = connection.execute(queries["next_delayed_place"]).get
            later = [
                (place + number, m.given, now, wall, m.id, m.payload, now + int(m.delay * MICRO))
                for number, m in enumerate(delayed)
            ]
            connection.executemany(queries["put_delayed"], later)

    @staticmethod
    def _unknown(
        connection: apsw.Connection,
        queries: Mapping[str, str],
        messages: Sequence[Outgoing],
        now: int,
    ) -> list[Outgoing]:
        """Leave out the messages whose id is queued or was sent within five minutes."""
        horizon = now - REMEMBER_IDS_US
        connection.execute(queries["forget_ids"], (horizon,))
        fresh = []
        for message in messages:
            if message.given:
                if connection.execute(queries["is_known"], (message.id, horizon)).get:
                    continue
                connection.execute(queries["remember_id"], (message.id, now))
            fresh.append(message)
        return fresh

    def _check_room(
        self, connection: apsw.Connection, queries: Mapping[str, str], wanted: int
    ) -> None:
        if self._max_size is None or not wanted:
            return
        line = connection.execute(queries["count"]).get
        held = connection.execute(queries["count_held"]).get
        if line + held + wanted > self._max_size:
            raise MailboxFullError(
                f"{self.name!r} holds {line + held} of at most {self._max_size} messages, "
                f"there is no room for {wanted} more; nothing was sent"
            )

    @staticmethod
    def _promote(connection: apsw.Connection, queries: Mapping[str, str], now: int) -> int:
        """Move what has come due to the end of the line; return how many of it were leases."""
        due: list[Any] = connection.execute(queries["due"], (now,)).fetchall()
        if not due:
            return 0
        place = connection.execute(queries["next_place"]).get
        moves = [(place + number, seq) for number, (seq, _) in enumerate(due)]
        connection.executemany(queries["promote"], moves)
        connection.executemany(queries["unhold"], [(seq,) for seq, _ in due])
        return sum(leased for _, leased in due)

    @staticmethod
    def _next_due(
        connection: apsw.Connection, queries: Mapping[str, str], now: int
    ) -> float | None:
        due = connection.execute(queries["next_due"], (now,)).get
        return None if due is None else (due - now) / MICRO

    def _drop_old(
        self, connection: apsw.Connection, queries: Mapping[str, str], cutoff: int, count: int
    ) -> int:
        """Remove messages at the front that are older than the retention."""
        dropped = 0
        while True:
            front: list[Any] = connection.execute(queries["front"], (count,)).fetchall()
            old = [seq for seq, sent in front if sent < cutoff]
            if not old:
                return dropped
            self._leave_line(connection, queries, old)
            dropped += len(old)
            count = max(count, 1000)

    def _take_by_id(
        self,
        connection: apsw.Connection,
        queries: Mapping[str, str],
        ids: Sequence[str],
        until: int,
        wall: float,
    ) -> list[Any]:
        places = self._places(connection, queries, set(ids))
        rows = [connection.execute(queries["take_one"], (until, wall, seq)).get for seq in places]
        self._leave_line(connection, queries, places)
        return rows

    @staticmethod
    def _places(
        connection: apsw.Connection, queries: Mapping[str, str], wanted: set[str]
    ) -> list[int]:
        """Find messages in the line: chosen ids by an index, others by walking along it."""
        places = []
        for id in list(wanted):
            place = connection.execute(queries["place_of_given"], (id,)).get
            if place is not None:
                places.append(place)
                wanted.remove(id)
        if wanted:
            for seq, id in connection.execute(queries["line"]):
                if id in wanted:
                    places.append(seq)
                    wanted.remove(id)
                    if not wanted:
                        break
        return sorted(places)

    @staticmethod
    def _leave_line(
        connection: apsw.Connection, queries: Mapping[str, str], places: Sequence[int]
    ) -> None:
        """Take messages out of the line, wherever they stand."""
        connection.executemany(queries["leave_line"], [(seq, seq) for seq in places])
        connection.executemany(queries["add_hole"], [(seq,) for seq in places])
        connection.execute(queries["forget_holes"])

    def _settle_all(self, sql: str, handles: Sequence[str], *more: int) -> Sequence[bool]:
        if len(handles) == 1:
            return (self._database.change(sql, (*_parsed(handles[0]), *more)) > 0,)
        with self._database.transaction as connection:
            return [self._settle(connection, sql, handle, *more) for handle in handles]

    @staticmethod
    def _settle(connection: apsw.Connection, sql: str, handle: str, *more: int) -> bool:
        connection.execute(sql, (*_parsed(handle), *more))
        return connection.changes() > 0


def _parsed(handle: str) -> tuple[int, int]:
    """Return the place and the token of a receipt handle; what is none matches no message."""
    match = HANDLE.fullmatch(handle)
    if match is None:
        return NO_MESSAGE
    seq, token = int(match[1]), int(match[2])
    return (seq, token) if -(1 << 63) <= token < 1 << 63 else NO_MESSAGE


class SQLiteListener:
    """A `BellListener` whose bell also rings for other processes."""

    def __init__(self, store: SQLiteStore, database: Database, news: Key) -> None:
        self._wake = database.wake
        self._news = news
        self._listener = BellListener(store, self._wake.join(news))
        self.lease = self._listener.lease
        self.lease_async = self._listener.lease_async
        self.interrupt = self._listener.interrupt

    def close(self) -> None:
        """Leave the bell."""
        self._listener.close()
        self._wake.leave(self._news)
