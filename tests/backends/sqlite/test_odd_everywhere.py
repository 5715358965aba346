"""Whatever another program wrote into any column, nothing raises a bare error, the rest goes on."""

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.sqlite import SQLiteMailbox, SQLiteReplyStore
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.errors import WinkError
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.runtime.mailbox.seam.reply_table import JobStart
from weakincentives.runtime.mailbox.testing import driven

VALUES = {
    "null": "NULL",
    "zero": "0",
    "negative": "-1",
    "largest": "9223372036854775807",
    "smallest": "-9223372036854775808",
    "fraction": "1.5",
    "negative fraction": "-0.5",
    "huge": "1e300",
    "hugely negative": "-1e300",
    "infinite": "9e999",
    "negatively infinite": "-9e999",
    "empty text": "''",
    "text": "'never'",
    "text with a zero": "char(0)",
    "text that is not UTF-8": "CAST(X'FF41' AS TEXT)",
    "no bytes": "X''",
    "bytes": "X'FF00'",
    "JSON of another kind": "'[1, {}]'",
}
MESSAGE = [
    *("queue", "given", "sent_us", "enqueued_at", "deliveries", "nacks"),
    *("first_received_at", "id", "payload", "put_offs", "reply"),
]
# Not `seq`, `queue.id` and `hole.seq`: those are no values but say where a record stands.
COLUMNS = {
    "waiting": [*MESSAGE, "again"],
    "held": [*MESSAGE, "visible_us", "leased", "token", "cancelled"],
    "known": ["queue", "id", "sent_us"],
    "queue": ["indexed_to"],
    "reply": [
        *("state", "created_us", "expires_us", "resolved_us", "payload", "owner", "id"),
        *("ttl_us", "keep_us", "handle", "worker", "deliveries", "started_at", "series"),
        *("parts", "part_bytes"),
    ],
    "reply_part": ["reply", "number", "series", "bytes_before", "payload"],
    "era": ["boot", "shift_us", "wall_offset_us", "seen_us"],
}
PLACES = [(table, column) for table, columns in COLUMNS.items() for column in columns]


def plant(path: Path, table: str, column: str, value: str) -> None:
    planter = apsw.Connection(str(path))
    with contextlib.suppress(apsw.ConstraintError):
        planter.execute(f"UPDATE OR REPLACE {table} SET {column} = {value}")
    planter.close()


def use_replies(replies: SQLiteReplyStore[Any]) -> None:
    """Do everything with replies; each ends, or fails in a way that its caller can handle."""
    for id in ("pending", "resolved", "cancelled"):
        for step in (
            replies.get,
            partial(replies.resolve, value=1),
            replies.consume,
            replies.cancel,
            replies.delete,
        ):
            with contextlib.suppress(WinkError):
                step(id)
        use_parts(replies, id)
    assert all(type(id) is str for id in replies.scan_expired())
    replies.cleanup_expired()
    assert replies.create("new", ttl=60)
    assert replies.resolve("new", 2)
    entry = replies.consume("new")
    assert entry is not None
    assert entry.value == 2


def use_parts(replies: SQLiteReplyStore[Any], id: str) -> None:
    """Begin the job anew, emit and read what there is of it."""
    table = replies._table
    driven(table.reopen(id, 60, "jobs/1", 60))
    row = driven(table.start(id, "jobs/1", JobStart("1.1", "host:1", 1)))
    assert row is None or type(row.parts) is int
    driven(table.emit(id, "jobs/1", "1.1", [b"1", b"2"]))
    numbers = [part.number for part in driven(table.parts(id, 0, 10))]
    assert numbers == sorted(set(numbers))
    with contextlib.closing(table.listen(id)) as listener:
        driven(listener.get_parts(0, 0.0))


def read(message: Any) -> object:
    assert isinstance(message.id, str)
    assert message.enqueued_at.year >= 1
    try:
        return message.body
    except SerializationError:
        return None


def use_asked(box: SQLiteMailbox[Any, Any], asked: Any) -> None:
    """Ask what has become of a job, and cancel what is not there."""
    with contextlib.suppress(WinkError):
        asked.status()
    with contextlib.suppress(WinkError):
        list(asked.parts(timeout=0.001))
    assert not box.cancel("nobody")


def drained(box: SQLiteMailbox[Any, Any], clock: TwoClocks) -> list[object]:
    """Receive all that comes within a day; nack the first of it, acknowledge the rest."""
    bodies: list[object] = []
    for number in range(8):
        for message in box.receive(max_messages=10, visibility_timeout=60):
            assert message.first_received_at.year >= 1
            if number == 0:
                message.nack(visibility_timeout=1)
                continue
            if message.expects_reply():
                message.reply(0)
            else:
                message.acknowledge()
            bodies.append(read(message))
        clock.advance(10_000)
    return bodies


@pytest.mark.parametrize(("table", "column"), PLACES)
def test_nothing_that_is_planted_stops_the_rest(
    table: str, column: str, tmp_path: Path, clock: TwoClocks, reopened: Callable[..., Database]
) -> None:
    for number, (name, value) in enumerate(VALUES.items()):
        path = tmp_path / f"{number}.db"
        database = reopened(path)
        box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", database)
        replies: SQLiteReplyStore[Any] = SQLiteReplyStore(database)
        for id in ("pending", "resolved", "cancelled"):
            replies.create(id, ttl=60)
            use_parts(replies, id)
        replies.resolve("resolved", 1)
        replies.cancel("cancelled")
        asked = box.send_expecting_reply("asked", reply_timeout=80_000)
        box.send("leased", message_id="leased")
        assert len(box.receive(max_messages=2, visibility_timeout=60)) == 2
        box.send("delayed", delay_seconds=60, message_id="delayed")
        box.send("waiting", message_id="waiting")
        plant(path, table, column, value)
        use_asked(box, asked)
        use_replies(replies)
        assert len(box.peek()) == box.stats().pending >= 1, name
        before = box.stats()
        assert before.total + before.unreadable == 4, name
        if number % 2:  # the next process finds it
            database.close()
            database = reopened(path)
            box = SQLiteMailbox("jobs", database)
            asked._replies.table.database = database
        box.send("after", message_id="after")
        bodies = drained(box, clock)
        assert "after" in bodies, name
        left = box.stats()
        assert len(bodies) + left.total + left.unreadable == 5, name
        assert left.total == 0, name
        with contextlib.suppress(WinkError):
            asked.wait(timeout=0.01)
        assert box.purge() == left.unreadable
        assert box.stats().unreadable == 0
        assert box.send("again", message_id="again")
        assert [message.body for message in box.receive()] == ["again"]
        database.close()
