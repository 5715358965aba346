"""The Store on SQLite: one queue of a file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import apsw

from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.errors import MailboxFullError
from weakincentives.runtime.mailbox.limits import Limits
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.optional_protocols import (
    Answer,
    LeaseState,
    NewReply,
    ReplyValue,
)
from weakincentives.runtime.mailbox.seam.process_name import process_name
from weakincentives.runtime.mailbox.seam.reply_table import JobStart
from weakincentives.runtime.mailbox.seam.store import (
    GivingBack,
    Leased,
    Leases,
    Outgoing,
    QueueStats,
    Seen,
)
from weakincentives.runtime.mailbox.seam.waiting import LATEST_LEASES, BellListener

from . import statements
from .cancels import cancel, lease_states
from .clock import MICRO
from .database import Database
from .deleting import delete_queue, make_queue
from .due import Due
from .pauses import SQLitePauseTable
from .queries import QUERIES
from .replies import SQLiteReplyTable
from .reply_rows import start_in
from .unreadable import LEASED_ROW_TYPES, mended, mended_seen
from .wake import Key
from .workers import SQLiteWorkerTable

__all__ = ["SQLiteStore"]

# While enough messages are pending, due ones are promoted only this often.
PROMOTE_EVERY_US = MICRO // 10
NO_NEWS: Mapping[Key, int] = {}

Prolonged: TypeAlias = tuple[SQLiteReplyTable, str, str]
"""A reply that is to expire later: where it is, its id and its owner."""


class SQLiteStore:
    """One queue of a file; schema.sql describes its tables."""

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
        self.backend_key = database.file.key
        self.clock = database.clock
        self.look_interval = look_interval
        self.worker_table = SQLiteWorkerTable(database)
        self.pause_table = SQLitePauseTable(database)
        self._database = database
        self._max_size = max_size
        self._retention_us = None if retention is None else int(retention * MICRO)
        self.news: Key = (QUERIES["ready"], name)
        self._queries: statements.Queries | None = None
        self._due = Due()
        self._promoted_us = 0

    def put_now(self, messages: Sequence[Outgoing]) -> int | None:
        """Add the messages, all or none; skip those whose chosen id is known already."""
        queries = self._queries or self._known_queue()
        message = messages[0]
        if (
            len(messages) == 1
            and queries is not None
            and not message.given
            and not message.delay
            and self._max_size is None
        ):
            arguments = (self.clock.time(), message.id, message.payload, message.reply_id)
            if self._database.insert(queries["put"], arguments, self.news):
                return 1
        added = self._database.transact(self.put_in, messages)
        self._database.notify(self.news, len(messages))
        return added

    def put_in(self, connection: apsw.Connection, messages: Sequence[Outgoing]) -> int:
        """Do what `put_now` does, as part of a transaction."""
        queries = self._queries
        if queries is None or not connection.execute(queries["is_there"]).get:
            self._forget_queue()  # not cached before it is committed
            queries = make_queue(connection, self.name, self._database.time.now_us())
        return self._put(connection, queries, messages)

    def is_beside(self, table: object) -> bool:
        """Whether replies of this table are in the same file."""
        return isinstance(table, SQLiteReplyTable) and self._database.shares(table.database)

    async def put_expecting(
        self,
        messages: Sequence[Outgoing],
        table: SQLiteReplyTable,
        replies: Sequence[NewReply],
    ) -> None:
        """Add the messages, and the pending reply to each of them: all or nothing."""
        if self._queries is None:
            self._known_queue()
        self._database.transact(self._put_expecting, messages, table, replies)
        self._database.notify(self.news, len(messages))

    def _put_expecting(
        self,
        connection: apsw.Connection,
        messages: Sequence[Outgoing],
        table: SQLiteReplyTable,
        replies: Sequence[NewReply],
    ) -> None:
        for reply in replies:
            table.create_in(connection, *reply)
        self.put_in(connection, messages)

    async def put_reopening(
        self, message: Outgoing, table: SQLiteReplyTable, reply: NewReply
    ) -> None:
        """Add a message that is replayed, and have its reply wait for it: both or neither."""
        if self._queries is None:
            self._known_queue()
        news = self._database.transact(self._put_reopening, message, table, reply)
        for key in news:
            self._database.notify(key, 1)

    def _put_reopening(
        self,
        connection: apsw.Connection,
        message: Outgoing,
        table: SQLiteReplyTable,
        reply: NewReply,
    ) -> Sequence[Key]:
        if not self.put_in(connection, (message,)):
            return ()
        return self.news, table.reopen_in(connection, *reply)

    async def put_off(
        self, handle: str, delay: float, table: SQLiteReplyTable, reply_id: str, owner: str
    ) -> bool:
        """Give a message back, and have its reply expire that much later: both or neither."""
        return (await self._give_back([handle], delay, "put_off", (table, reply_id, owner)))[0]

    def carries(self, place: object) -> bool:
        """Return whether an acknowledgement's transaction can also write to this table or store."""
        if isinstance(place, SQLiteStore):
            # A store with a size limit may be full, and that would undo the acknowledgement too.
            if place._max_size is not None or not self._database.shares(place._database):
                return False
            if place._queries is None:
                place._known_queue()
            return True
        return self.is_beside(place)

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
        answers: Sequence[Answer] = (),
    ) -> Leases:
        """Acknowledge, answer, then lease up to ``count`` messages, in one step."""
        queries = self._queries or self._known_queue()
        if queries is None:
            return Leases((), [False] * len(acknowledge))
        leases, news = self._database.transact(
            self._lease, queries, count, seconds, acknowledge, ids, answers
        )
        for key, times in news.items():
            self._database.notify(key, times)
        if not leases.messages and self._queries is not queries:
            # It was deleted, and may have been made anew; the leases of then ended with it.
            again = self.lease_now(count, seconds, ids=ids)
            return again._replace(acknowledged=leases.acknowledged)
        return leases

    def _lease(
        self,
        connection: apsw.Connection,
        queries: statements.Queries,
        count: int,
        seconds: float,
        acknowledge: Sequence[str],
        ids: Sequence[str] | None,
        answers: Sequence[Answer],
    ) -> tuple[Leases, Mapping[Key, int]]:
        now = self._database.time.now_us()
        done = statements.settle(connection, queries["acknowledge_at"], acknowledge, now)
        news = _answer(connection, answers, acknowledge, done) if answers else NO_NEWS
        if ids is None and connection.execute(QUERIES["is_paused"], (self.name,)).fetchone():
            return Leases((), done), news
        until, wall = now + int(seconds * MICRO), self.clock.time()
        rows: list[Any] = []
        expired = dropped = 0
        if ids is None and self._retention_us is None:
            rows = statements.take(connection, queries, until, wall, count, self._due.leased)
        if len(rows) < count or now - self._promoted_us >= PROMOTE_EVERY_US:
            self._promoted_us = now
            expired = self._due.bring_back(connection, queries, now)
        if ids is not None:
            rows = statements.take_by_id(connection, queries, ids, until, wall)
        elif len(rows) < count:
            if self._retention_us is not None:
                dropped = statements.drop_old(connection, queries, now - self._retention_us, count)
            left = count - len(rows)
            rows += statements.take(connection, queries, until, wall, left, self._due.leased)
        next_due = None if rows else self._due.next_due(now)
        if not rows and not connection.execute(queries["is_there"]).get:
            self._forget_queue()
        leased = [
            Leased(row[2], f"{row[0]}.{row[1]}", *row[3:])
            if tuple(map(type, row)) == LEASED_ROW_TYPES
            else self._unusual(connection, row)
            for row in rows
        ]
        if LATEST_LEASES.store is self:
            # Before the commit, because an interrupt can come right after it.
            LATEST_LEASES.handles = [one.handle for one in leased]
        return Leases(leased, done, next_due, expired, dropped), news

    def _unusual(self, connection: apsw.Connection, row: Any) -> Leased:
        """Return a leased row to which a caller waits for a reply, or one that is odd."""
        leased, reply_id = mended(row), row[-1]
        if type(reply_id) is not str:
            return leased
        # Here, so that a worker need not ask: if the reply is in another file, it finds none.
        start = JobStart(leased.handle, process_name(), leased.delivery_count)
        owner = f"{self.name}/{leased.id}"
        reply = start_in(connection, self._database.time, reply_id, owner, start)
        return leased._replace(reply=reply)

    def acknowledge_now(
        self, handles: Sequence[str], *, answers: Sequence[Answer] = ()
    ) -> Sequence[bool]:
        """Remove the messages, and send the answers to them; False where the lease had ended."""
        if not answers:
            return self._settle_all(QUERIES["acknowledge"], handles)
        done, news = self._database.transact(self._acknowledge, handles, answers)
        for key, times in news.items():
            self._database.notify(key, times)
        return done

    def _acknowledge(
        self, connection: apsw.Connection, handles: Sequence[str], answers: Sequence[Answer]
    ) -> tuple[Sequence[bool], Mapping[Key, int]]:
        done = statements.settle(connection, QUERIES["acknowledge"], handles)
        return done, _answer(connection, answers, handles, done)

    async def put(self, messages: Sequence[Outgoing]) -> int | None:
        """Do what `put_now` does."""
        return self.put_now(messages)

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
        answers: Sequence[Answer] = (),
    ) -> Leases:
        """Do what `lease_now` does."""
        return self.lease_now(count, seconds, acknowledge=acknowledge, ids=ids, answers=answers)

    async def acknowledge(
        self, handles: Sequence[str], *, answers: Sequence[Answer] = ()
    ) -> Sequence[bool]:
        """Do what `acknowledge_now` does."""
        return self.acknowledge_now(handles, answers=answers)

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        """Give the messages back, visible after ``delay``: undone ones in their old places, all
        others at the end of the queue."""
        return await self._give_back(handles, delay, how)

    async def _give_back(
        self,
        handles: Sequence[str],
        delay: float,
        how: GivingBack,
        prolonged: Prolonged | None = None,
    ) -> Sequence[bool]:
        queries = self._queries or self._known_queue()
        if queries is None:
            return [False] * len(handles)
        done = self._database.transact(self._release, queries, handles, delay, how, prolonged)
        # Even with a delay: a blocked consumer must compute anew how long it may wait.
        self._database.notify(self.news, len(done))
        return done

    def _release(
        self,
        connection: apsw.Connection,
        queries: statements.Queries,
        handles: Sequence[str],
        delay: float,
        how: GivingBack,
        prolonged: Prolonged | None,
    ) -> Sequence[bool]:
        done = self._release_only(connection, queries, handles, delay, how)
        if prolonged is not None and done[0]:
            table, reply_id, owner = prolonged
            table.prolong_in(connection, reply_id, delay, owner)
        return done

    def _release_only(
        self,
        connection: apsw.Connection,
        queries: statements.Queries,
        handles: Sequence[str],
        delay: float,
        how: GivingBack,
    ) -> Sequence[bool]:
        if delay:
            self._database.file.note_wall_clock(connection)
            return statements.put_back_later(connection, queries, handles, int(delay * MICRO), how)
        if how == "undone":
            return statements.undo(connection, queries, handles)
        return statements.give_back(connection, queries, handles, how == "put_off")

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        """Make the leases end ``seconds`` from now; False where they had ended already."""
        return self._settle_all(QUERIES["extend"], handles, int(seconds * MICRO))

    async def cancel(self, ids: Sequence[str]) -> Sequence[bytes | None]:
        """Remove messages that wait, and mark those that are leased."""
        queries = self._queue_now()
        if queries is None:
            return [None] * len(ids)
        return cancel(self._database, queries, ids)

    async def lease_states(self, handles: Sequence[str]) -> Sequence[LeaseState]:
        """Return, for each handle, whether its lease is held and its message cancelled."""
        return lease_states(self._database, handles)

    async def purge(self) -> int:
        """Remove every message, leased ones too, forget all ids, and return how many there were."""
        queries = self._queue_now()
        if queries is None:
            return 0
        return self._database.transact(statements.purge, queries)

    async def delete(self, force: bool = False) -> bool:
        """Remove the queue and all that is known of it; return False if there is none."""
        now = self._database.time.now_us()
        return self._database.transact(delete_queue, self.name, force, now)

    async def forget_soon(self, ids: Sequence[str]) -> None:
        """Forget these ids after five minutes if they would be remembered for longer."""
        queries = self._queries or self._known_queue()
        if queries is not None:
            self._database.transact(statements.forget_soon, queries, ids)

    async def stats(self) -> QueueStats:
        """Count the messages by state; only leased and delayed messages cost time."""
        queries = self._queue_now()
        paused = bool(self._database.read(QUERIES["is_paused"], (self.name,)))
        if queries is None:
            return QueueStats(0, 0, 0, None, paused=paused)
        now = self._database.time.now_us()
        ((waiting, due, leased, delayed, oldest, held),) = self._database.read(
            queries["stats"], (now,)
        )
        age = max(now - oldest, 0) / MICRO if type(oldest) is int else None
        # Held rows that are neither leased nor delayed come from another program, and are never
        # received.
        unreadable = max(held - due - leased - delayed, 0)
        return QueueStats(waiting + due, leased, delayed, age, unreadable, paused)

    async def peek(self, limit: int, offset: int = 0) -> Sequence[Seen]:
        """Return pending messages, in the order in which they would be received."""
        queries = self._queue_now()
        if queries is None:
            return []
        read = self._database.read
        rows = read(queries["peek"], (limit, offset))
        if len(rows) < limit:
            before = offset + len(rows) - read(queries["count"])[0][0]
            arguments = (self._database.time.now_us(), True, limit - len(rows), max(before, 0))
            rows += read(queries["peek_due"], arguments)
        return [mended_seen(row) for row in rows]

    def listen(self, *, in_loop: bool = False) -> "SQLiteListener":
        """Return a new listener."""
        return SQLiteListener(self, self._database, self.news, in_loop=in_loop)

    def close(self) -> None:
        """Do nothing: the database owns the file, and received messages can still be settled."""

    def _known_queue(self) -> statements.Queries | None:
        """Find the queue, and cache its statements; only a committed queue may be cached."""
        rows = self._database.read(QUERIES["find_queue"], (self.name,))
        if rows:
            self._queries = statements.queries_of(rows[0][0])
        return self._queries

    def _queue_now(self) -> statements.Queries | None:
        """Find the queue even if it was deleted and made anew since it was last used here."""
        queries = self._queries
        if queries is not None and not self._database.read(queries["is_there"])[0][0]:
            self._forget_queue()
        return self._queries or self._known_queue()

    def _forget_queue(self) -> None:
        """Forget what is known of the queue, because it was deleted."""
        self._queries, self._due, self._promoted_us = None, Due(), 0

    def _put(
        self,
        connection: apsw.Connection,
        queries: statements.Queries,
        messages: Sequence[Outgoing],
    ) -> int:
        now = self._database.time.now_us()
        if [message for message in messages if message.given]:
            messages = statements.without_repeats(connection, queries, messages, now)
        self._check_room(connection, queries, len(messages))
        wall = self.clock.time()
        delayed = [message for message in messages if message.delay]
        prompt = [message for message in messages if not message.delay] if delayed else messages
        if prompt:
            place = connection.execute(queries["next_place"]).get
            rows = [
                (place + number, m.given, now, wall, m.id, m.payload, m.reply_id)
                for number, m in enumerate(prompt)
            ]
            connection.executemany(queries["put_at"], rows)
        if delayed:
            self._database.file.note_wall_clock(connection)
            place = connection.execute(queries["next_delayed_place"]).get
            later = [
                (
                    *(place + number, m.given, now, wall, m.id, m.payload, m.reply_id),
                    now + int(m.delay * MICRO),
                )
                for number, m in enumerate(delayed)
            ]
            connection.executemany(queries["put_delayed"], later)
        return len(messages)

    def _check_room(
        self, connection: apsw.Connection, queries: statements.Queries, wanted: int
    ) -> None:
        if self._max_size is None or not wanted:
            return
        waiting = connection.execute(queries["count"]).get
        # Counting the held messages is slow if there are many. Their numbers give an upper bound,
        # so they are counted only if that exceeds the limit.
        if waiting + connection.execute(queries["most_held"]).get + wanted <= self._max_size:
            return
        held = connection.execute(queries["count_held"]).get
        if waiting + held + wanted > self._max_size:
            raise MailboxFullError(
                f"{self.name!r} holds {waiting + held} of at most {self._max_size} messages, "
                f"there is no room for {wanted} more; none of these was sent"
            )

    def _settle_all(self, sql: str, handles: Sequence[str], *more: int) -> Sequence[bool]:
        if len(handles) == 1:
            return (self._database.change(sql, (*statements.parsed(handles[0]), *more)) > 0,)
        return self._database.transact(statements.settle, sql, handles, *more)


def _answer(
    connection: apsw.Connection,
    answers: Sequence[Answer],
    handles: Sequence[str],
    done: Sequence[bool],
) -> Mapping[Key, int]:
    """Send the answers to what was acknowledged; return whom to tell after the commit, and of how
    many."""
    acknowledged = {handle for handle, ok in zip(handles, done, strict=True) if ok}
    news: Counter[Key] = Counter()
    for handle, place, what in answers:
        if handle not in acknowledged:
            continue
        if isinstance(what, ReplyValue):
            assert isinstance(place, SQLiteReplyTable)
            news[place.resolve_in(connection, *what)] += 1
        else:
            assert isinstance(place, SQLiteStore)
            place.put_in(connection, (what,))
            news[place.news] += 1
    return news


class SQLiteListener:
    """A `BellListener` whose bell also rings for other processes."""

    def __init__(self, store: SQLiteStore, database: Database, news: Key, *, in_loop: bool) -> None:
        self._wake = database.wake
        self._news = news
        self._listener = BellListener(store, self._wake.join(news), in_loop=in_loop)
        self.lease = self._listener.lease
        self.interrupt = self._listener.interrupt

    def close(self) -> None:
        """Leave the bell."""
        self._listener.close()
        self._wake.leave(self._news)
