"""Replies in a SQLite file."""

import os
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from weakincentives.runtime.mailbox.flow import Steps, in_executor
from weakincentives.runtime.mailbox.replies import StoredReplies
from weakincentives.runtime.mailbox.reply_table import LINGER, ReplyRow, ReplyState
from weakincentives.runtime.mailbox.waiting import Ear

from .database import Database
from .era import MICRO
from .queries import load_queries
from .registry import shared_database
from .wake import Key

__all__ = ["SQLiteReplyStore", "SQLiteReplyTable"]

T = TypeVar("T")

QUERIES = load_queries()
LINGER_US = int(LINGER * MICRO)
# Callers that died leave their replies behind; they are swept away this long after they expired,
# at every so many new ones.
FORGET_US = 3600 * MICRO
SWEEP_EVERY = 1000


class SQLiteReplyTable:
    """The table ``reply`` of a file."""

    steps: ClassVar[Steps] = "blocking"
    keeps_objects: ClassVar[bool] = False

    def __init__(self, database: Database) -> None:
        self._database = database
        self._until_sweep = 1

    def create(self, id: str, ttl: float) -> bool:
        """Add a pending reply; False if the id is taken."""
        made = self._database.change(QUERIES["reply_create"], (id, int(ttl * MICRO))) > 0
        self._until_sweep -= 1
        if not self._until_sweep:
            self._until_sweep = SWEEP_EVERY
            self._database.change(QUERIES["reply_cleanup"], (FORGET_US, SWEEP_EVERY))
        return made

    def resolve(self, id: str, payload: bytes) -> bool:
        """Store the value if the reply is pending."""
        arguments = (id, payload, LINGER_US)
        return self._database.change(QUERIES["reply_resolve"], arguments, _news(id)) > 0

    def cancel(self, id: str) -> bool:
        """Close the reply if it is pending."""
        return self._database.change(QUERIES["reply_cancel"], (id,), _news(id)) > 0

    def get(self, id: str) -> ReplyRow | None:
        """Look at a reply."""
        rows = self._database.read(QUERIES["reply_get"], (id,))
        return self._row(id, *rows[0]) if rows else None

    def consume(self, id: str) -> ReplyRow | None:
        """Return and remove a resolved reply, to one caller only."""
        rows = self._database.fetch(QUERIES["reply_consume"], (id,))
        if not rows:
            return None
        self._database.announce(_news(id))
        return self._row(id, *rows[0])

    def delete(self, id: str) -> bool:
        """Remove the reply; False if there was none."""
        return self._database.change(QUERIES["reply_delete"], (id,), _news(id)) > 0

    def forget(self, id: str) -> None:
        """Remove a reply that was read, without an fsync of its own."""
        self._database.change(QUERIES["reply_delete"], (id,), _news(id), lasting=False)

    def scan_expired(self, limit: int) -> list[str]:
        """Return ids of replies whose time is over."""
        return [id for (id,) in self._database.read(QUERIES["reply_expired"], (limit,))]

    def cleanup_expired(self, limit: int) -> int:
        """Remove replies whose time is over and return how many."""
        return self._database.change(QUERIES["reply_cleanup"], (0, limit))

    def listen(self, id: str) -> "SQLiteReplyListener":
        """Return a new listener."""
        return SQLiteReplyListener(self, self._database, id)

    def remaining(self, row: ReplyRow) -> float:
        """Return how long a reply has to live."""
        return row.expires_at - self._database.clock.time()

    def _row(
        self,
        id: str,
        state: str,
        payload: bytes | None,
        created_us: int,
        expires_us: int,
        resolved_us: int | None,
    ) -> ReplyRow:
        time = self._database.time
        over = time.now_us() >= expires_us
        return ReplyRow(
            id,
            ReplyState.EXPIRED if over else ReplyState(state),
            payload,
            time.wall(created_us),
            time.wall(expires_us),
            None if resolved_us is None else time.wall(resolved_us),
        )


def _news(id: str) -> Key:
    return (QUERIES["reply_settled"], id)


class SQLiteReplyListener:
    """Waits until one reply is settled, here or in another process."""

    def __init__(self, table: SQLiteReplyTable, database: Database, id: str) -> None:
        self._table = table
        self._wake = database.wake
        self._id = id
        self._ear = Ear(self._wake.join(_news(id)))

    def get(self, wait: float) -> ReplyRow | None:
        """Wait for the bell, then look."""
        row = self._table.get(self._id)
        if row is not None and row.state == ReplyState.PENDING:
            self._ear.wait(self._pause(row, wait))
            row = self._table.get(self._id)
        return row

    async def get_async(self, wait: float) -> ReplyRow | None:
        """Wait for the bell in the event loop, then look."""
        look = partial(in_executor, partial(self._table.get, self._id))
        row: ReplyRow | None = await look()
        if row is not None and row.state == ReplyState.PENDING:
            await self._ear.wait_async(self._pause(row, wait))
            row = await look()
        return row

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
