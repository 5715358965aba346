"""Replies in a SQLite file."""

import os
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Generic, TypeVar

import apsw

from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.driver import Steps
from weakincentives.runtime.mailbox.seam.reply_table import (
    LINGER,
    MOST_READ,
    JobStart,
    PartRow,
    ReplyRow,
    ReplyState,
)
from weakincentives.runtime.mailbox.seam.step_threads import hop
from weakincentives.runtime.mailbox.seam.waiting import Ear

from .clock import MICRO
from .database import Database
from .queries import QUERIES
from .registry import shared_database
from .reply_parts import emit_in, part_of
from .reply_rows import row_of, start_in
from .unreadable import as_count, as_text
from .wake import Key, ReplyBell

__all__ = ["SQLiteReplyStore", "SQLiteReplyTable"]

T = TypeVar("T")
V = TypeVar("V")

LINGER_US = int(LINGER * MICRO)
# Callers that died leave their replies behind; they are swept away this long after they expired.
FORGET_US = 3600 * MICRO
# At every so many new replies twice as many are looked at, from where the last look ended: so that
# all of them have their turn, and no look takes longer because there are many.
SWEEP_EVERY = 100
SWEPT_AT_ONCE = 2 * SWEEP_EVERY


class SQLiteReplyTable:
    """The table ``reply`` of a file."""

    steps: ClassVar[Steps] = "blocking"
    keeps_objects: ClassVar[bool] = False

    def __init__(self, database: Database) -> None:
        self.database = database
        self.backend_key = database.file.key
        self._until_sweep = 1
        self._swept_to = ""

    async def create(
        self, id: str, ttl: float, owner: str | None = None, keep: float = 0.0
    ) -> bool:
        """Add a pending reply; False if the id is taken."""
        return self.database.transact(self.create_in, id, ttl, owner, keep)

    def create_in(
        self, connection: apsw.Connection, id: str, ttl: float, owner: str | None, keep: float
    ) -> bool:
        """Do what `create` does, as part of a transaction."""
        connection.execute(QUERIES["reply_create"], _opening(id, ttl, owner, keep))
        made = connection.changes() > 0
        self._until_sweep -= 1
        if self._until_sweep <= 0:
            self._until_sweep = SWEEP_EVERY
            self._sweep(connection)
        return made

    def _sweep(self, connection: apsw.Connection) -> None:
        """Look at the next replies, and remove those that will not be read any more."""
        start = self._swept_to
        end = connection.execute(QUERIES["reply_some"], (start, SWEPT_AT_ONCE)).get
        if end is not None:
            connection.execute(QUERIES["reply_sweep"], (start, end, FORGET_US))
        self._swept_to = "" if end is None else end

    async def reopen(self, id: str, ttl: float, owner: str, keep: float = 0.0) -> bool:
        """Make a reply pending again unless it is resolved or cancelled; create it if need be."""
        arguments = _opening(id, ttl, owner, keep)
        return self.database.change(QUERIES["reply_reopen"], arguments, _news(id)) > 0

    def reopen_in(
        self, connection: apsw.Connection, id: str, ttl: float, owner: str, keep: float
    ) -> Key:
        """Do what `reopen` does, as part of a transaction; return whom to tell after it."""
        connection.execute(QUERIES["reply_reopen"], _opening(id, ttl, owner, keep))
        return _news(id)

    async def start(self, id: str, owner: str, start: JobStart) -> ReplyRow | None:
        """Record a start, and return the row."""
        return self.database.transact(start_in, self.database.time, id, owner, start)

    async def prolong(self, id: str, seconds: float, owner: str) -> bool:
        """Have a pending reply expire later."""
        return self.database.change(QUERIES["reply_prolong"], (id, int(seconds * MICRO), owner)) > 0

    def prolong_in(self, connection: apsw.Connection, id: str, seconds: float, owner: str) -> None:
        """Do what `prolong` does, as part of a transaction."""
        connection.execute(QUERIES["reply_prolong"], (id, int(seconds * MICRO), owner))

    async def resolve(
        self, id: str, payload: bytes, owner: str | None = None, *, failed: bool = False
    ) -> bool:
        """Store the value if the reply is pending, and this owner's."""
        arguments = _settling(id, payload, owner, failed)
        return self.database.change(QUERIES["reply_resolve"], arguments, _news(id)) > 0

    def resolve_in(
        self,
        connection: apsw.Connection,
        id: str,
        payload: bytes,
        owner: str | None,
        failed: bool,
    ) -> Key:
        """Do what `resolve` does, as part of a transaction; return whom to tell after it."""
        connection.execute(QUERIES["reply_resolve"], _settling(id, payload, owner, failed))
        return _news(id)

    async def emit(self, id: str, owner: str, handle: str, payloads: Sequence[bytes]) -> bool:
        """Add parts, without an fsync of their own."""
        added = self.database.transact(emit_in, id, owner, handle, payloads, lasting=False)
        if added:
            self.database.notify(_news(id), 1)
        return added

    async def parts(self, id: str, first: int, limit: int) -> list[PartRow]:
        """Return parts from this index on."""
        rows = self.database.read(QUERIES["parts"], (id, first, limit))
        return [part_of(row) for row in rows if row[0] == as_count(row[0])]

    async def cancel(self, id: str) -> bool:
        """Close the reply if it is pending."""
        return self.database.change(QUERIES["reply_cancel"], (id, LINGER_US), _news(id)) > 0

    async def get(self, id: str) -> ReplyRow | None:
        """Look at a reply."""
        rows = self.database.read(QUERIES["reply_get"], (id,))
        return row_of(self.database.time, id, rows[0]) if rows else None

    async def consume(self, id: str) -> ReplyRow | None:
        """Return and remove a resolved reply, to one caller only."""
        rows = self.database.fetch(QUERIES["reply_consume"], (id,))
        if not rows:
            return None
        self.database.notify(_news(id), 1)
        row = row_of(self.database.time, id, rows[0])
        return row if row.state == ReplyState.RESOLVED else None

    async def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        return self.database.change(QUERIES["reply_delete"], (id,), _news(id)) > 0

    async def forget(self, id: str) -> None:
        """Remove a reply that was read, without an fsync of its own."""
        self.database.change(QUERIES["reply_delete"], (id,), _news(id), lasting=False)

    async def scan_expired(self, limit: int) -> list[str]:
        """Return ids of replies whose time is over."""
        return [as_text(id) for (id,) in self.database.read(QUERIES["reply_expired"], (limit,))]

    async def cleanup_expired(self, limit: int) -> int:
        """Remove replies whose time is over and return how many."""
        return self.database.change(QUERIES["reply_cleanup"], (limit,))

    def listen(self, id: str, *, in_loop: bool = False) -> "SQLiteReplyListener":
        """Return a new listener."""
        return SQLiteReplyListener(self, self.database, id, in_loop=in_loop)

    def remaining(self, row: ReplyRow) -> float:
        """Return how long a reply has to live."""
        return row.expires_at - self.database.clock.time()


def _opening(id: str, ttl: float, owner: str | None, keep: float) -> tuple[Any, ...]:
    return (id, int(ttl * MICRO), owner, int(keep * MICRO))


def _settling(id: str, payload: bytes, owner: str | None, failed: bool) -> tuple[Any, ...]:
    state = ReplyState.FAILED if failed else ReplyState.RESOLVED
    return (id, payload, LINGER_US, owner, state.value)


def _news(id: str) -> Key:
    return (QUERIES["reply_news"], id)


class SQLiteReplyListener:
    """Waits for news of one reply, from here or from another process."""

    def __init__(
        self, table: SQLiteReplyTable, database: Database, id: str, *, in_loop: bool
    ) -> None:
        self._table = table
        self._wake = database.wake
        self._id = id
        self._in_loop = in_loop
        self._ear = Ear(self._wake.join(_news(id), ReplyBell))

    async def get(self, wait: float) -> ReplyRow | None:
        """Wait for the bell, then look."""
        row = await self._look()
        if row is not None and row.state == ReplyState.PENDING:
            await self._ear.hear(self._pause(row, wait), in_loop=self._in_loop)
            row = await self._look()
        return row

    async def get_parts(self, first: int, wait: float) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        """Wait for the bell if there is no such part yet, then look."""
        row, parts = await self._look_for_parts(first)
        if row is not None and row.state == ReplyState.PENDING and not parts:
            await self._ear.hear(self._pause(row, wait), in_loop=self._in_loop)
            row, parts = await self._look_for_parts(first)
        return row, parts

    async def _look_for_parts(self, first: int) -> tuple[ReplyRow | None, Sequence[PartRow]]:
        row = await self._look()
        if row is None or row.parts <= first:
            return row, ()
        return row, await self._take(lambda: self._table.parts(self._id, first, MOST_READ))

    async def _look(self) -> ReplyRow | None:
        return await self._take(lambda: self._table.get(self._id))

    async def _take(self, step: Callable[[], Coroutine[Any, Any, V]]) -> V:
        return await (hop(step, self._table) if self._in_loop else step())

    def close(self) -> None:
        """Leave the bell."""
        self._wake.leave(_news(self._id))

    def _pause(self, row: ReplyRow, wait: float) -> float:
        # Look again now and then: a wake-up lost on the way must not cost the whole wait.
        return min(wait, LOOK_INTERVAL, max(self._table.remaining(row), 0.0))


LOOK_INTERVAL = 1.0


class SQLiteReplyStore(StoredReplies[T], Generic[T]):
    """A `ReplyStore` in a SQLite file, for callers and workers in any process of this machine."""

    def __init__(
        self,
        path: str | os.PathLike[str] | Database,
        *,
        value_type: Any = Any,
        durability: str = "full",
    ) -> None:
        database = path if isinstance(path, Database) else shared_database(path, durability)
        super().__init__(SQLiteReplyTable(database), value_type)
