"""The Store on SQLite: one queue of a file."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import apsw

from weakincentives.runtime.mailbox.errors import MailboxFullError
from weakincentives.runtime.mailbox.flow import Steps
from weakincentives.runtime.mailbox.limits import Capabilities, Limits
from weakincentives.runtime.mailbox.store import Leased, Leases, Outgoing, QueueStats, Seen
from weakincentives.runtime.mailbox.waiting import BellListener

from . import line
from .database import Database
from .era import MICRO
from .queries import load_queries
from .wake import Key

__all__ = ["SQLiteStore"]

QUERIES = load_queries()
# While the line can fill a request, what has come due is looked for only this often.
PROMOTE_EVERY_US = MICRO // 10


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
        self._queries: line.Queries | None = None
        self._promoted_us = 0

    def put(self, messages: Sequence[Outgoing]) -> None:
        """Add the messages, all or none; chosen ids that are known are left as they are."""
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
            now = self._database.time.now_us()
            done = line.settle(connection, queries["acknowledge_at"], acknowledge, now)
            until, wall = now + int(seconds * MICRO), self.clock.time()
            rows: list[Any] = []
            expired = dropped = 0
            if ids is None and self._retention_us is None:
                rows = line.take(connection, queries, until, wall, count)
            if len(rows) < count or now - self._promoted_us >= PROMOTE_EVERY_US:
                self._promoted_us = now
                expired = line.promote(connection, queries, now)
            if ids is not None:
                rows = line.take_by_id(connection, queries, ids, until, wall)
            elif len(rows) < count:
                if self._retention_us is not None:
                    dropped = line.drop_old(connection, queries, now - self._retention_us, count)
                rows += line.take(connection, queries, until, wall, count - len(rows))
            next_due = None if rows else line.next_due(connection, queries, now)
        leased = [Leased(row[2], f"{row[0]}.{row[1]}", *row[3:]) for row in rows]
        return Leases(leased, done, next_due, expired, dropped)

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages; False where the lease had ended."""
        return self._settle_all(QUERIES["acknowledge"], handles)

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        """Give the messages back, to the end of the queue, visible after ``delay``."""
        queries = self._queries or self._known_queue()
        if queries is None:
            return [False] * len(handles)
        with self._database.transaction as connection:
            if delay:
                self._database.note_wall_clock(connection)
                done = line.settle(connection, queries["release"], handles, int(delay * MICRO))
            else:
                done = line.give_back(connection, queries, handles)
            # With a delay too: a blocked consumer must learn when it is to look next.
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
        ((waiting, due, leased, delayed, oldest),) = self._database.read(queries["stats"], (now,))
        age = None if oldest is None else max(now - oldest, 0) / MICRO
        return QueueStats(waiting + due, leased, delayed, age)

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

    def _known_queue(self) -> line.Queries | None:
        """Find the queue. Only what is committed is remembered: the rest may be undone."""
        rows = self._database.read_committed(QUERIES["find_queue"], (self.name,))
        if rows:
            self._queries = line.queries_of(rows[0][0])
        elif self._database.in_transaction:
            rows = self._database.fetch(QUERIES["find_queue"], (self.name,))
            return line.queries_of(rows[0][0]) if rows else None
        return self._queries

    def _new_queue(self, connection: apsw.Connection) -> line.Queries:
        connection.execute(QUERIES["add_queue"], (self.name,))
        return line.queries_of(connection.execute(QUERIES["find_queue"], (self.name,)).get)

    def _put(
        self,
        connection: apsw.Connection,
        queries: line.Queries,
        messages: Sequence[Outgoing],
    ) -> None:
        now = self._database.time.now_us()
        if any(message.given for message in messages):
            messages = line.unknown(connection, queries, messages, now)
        self._check_room(connection, queries, len(messages))
        wall = self.clock.time()
        delayed = [message for message in messages if message.delay]
        prompt = [message for message in messages if not message.delay] if delayed else messages
        if prompt:
            place = connection.execute(queries["next_place"]).get
            rows = [
                (place + number, message.given, now, wall, message.id, message.payload)
                for number, message in enumerate(prompt)
            ]
            connection.executemany(queries["put_at"], rows)
        if delayed:
            self._database.note_wall_clock(connection)
            place = connection.execute(queries["next_delayed_place"]).get
            later = [
                (place + number, m.given, now, wall, m.id, m.payload, now + int(m.delay * MICRO))
                for number, m in enumerate(delayed)
            ]
            connection.executemany(queries["put_delayed"], later)

    def _check_room(self, connection: apsw.Connection, queries: line.Queries, wanted: int) -> None:
        if self._max_size is None or not wanted:
            return
        waiting = connection.execute(queries["count"]).get
        held = connection.execute(queries["count_held"]).get
        if waiting + held + wanted > self._max_size:
            raise MailboxFullError(
                f"{self.name!r} holds {waiting + held} of at most {self._max_size} messages, "
                f"there is no room for {wanted} more; nothing was sent"
            )

    def _settle_all(self, sql: str, handles: Sequence[str], *more: int) -> Sequence[bool]:
        if len(handles) == 1:
            return (self._database.change(sql, (*line.parsed(handles[0]), *more)) > 0,)
        with self._database.transaction as connection:
            return line.settle(connection, sql, handles, *more)


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
