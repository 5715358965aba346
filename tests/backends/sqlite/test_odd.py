"""Whatever somebody else wrote into the tables, the rest of the queue goes on."""

from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tests.backends.sqlite.clocks import TwoClocks
from weakincentives import connect
from weakincentives.contrib.mailbox.sqlite import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.runtime.mailbox import SerializationError

ODD = {
    "payload": ["42", "1.5", "'text'", "X''", "X'FF'"],
    "id": ["X'FF00'", "''", "42"],
    "deliveries": ["'many'", "1.5", "X'00'"],
    "nacks": ["'many'", "2.5", "X'00'"],
    "enqueued_at": ["'yesterday'", "X'00'"],
    "first_received_at": ["'today'", "X'00'"],
    "sent_us": ["'long ago'", "X'00'"],
    "given": ["'yes'"],
    "again": ["'no'"],
    "put_offs": ["'some'"],
    "reply": ["'nobody'", "42", "X'FF'"],
}


@pytest.mark.parametrize(("column", "value"), [(c, v) for c, vs in ODD.items() for v in vs])
def test_an_odd_row_holds_up_nobody(
    column: str, value: str, path: Path, opened: Callable[..., Database]
) -> None:
    box: SQLiteMailbox[object, None] = SQLiteMailbox("jobs", opened(), default_ttl=1000)
    box.send_batch([1, 2, 3])
    planter = apsw.Connection(str(path))
    planter.execute(f"UPDATE waiting SET {column} = {value} WHERE seq = (1 << 40) + 2")
    planter.close()
    assert len(box.peek()) == 3
    assert [type(seen.enqueued_at.year) for seen in box.peek()] == [int] * 3
    assert box.stats().pending == 3
    messages = box.receive(max_messages=3)
    assert len(messages) == 3
    bodies = []
    for message in messages:
        assert isinstance(message.id, str)
        assert message.attempts >= 0
        assert message.enqueued_at <= message.first_received_at or column.endswith("_at")
        try:
            bodies.append(message.body)
        except SerializationError:
            assert column == "payload"
    assert {1, 3} <= set(bodies)
    messages[1].nack()
    assert box.acknowledge_batch([messages[0], messages[2]]) == [True, True]
    (again,) = box.receive()
    assert again.acknowledge() is True
    assert box.stats().total == 0


def test_what_would_never_become_visible_does_within_a_minute(
    path: Path, clock: TwoClocks, opened: Callable[..., Database]
) -> None:
    box: SQLiteMailbox[int, None] = SQLiteMailbox("jobs", opened())
    box.send(1)
    box.receive()
    box.send(2, delay_seconds=60)
    planter = apsw.Connection(str(path))
    planter.execute("UPDATE held SET visible_us = 'never'")
    planter.close()
    box.send(3)
    seen = [message.body for message in box.receive(max_messages=5)]
    assert box.stats().total == 3
    clock.advance(61)
    seen += [message.body for message in box.receive(max_messages=5)]
    assert sorted(set(seen)) == [1, 2, 3]
    assert box.purge() == 3


def test_a_planted_queue_name_is_left_out(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with connect(f"sqlite:///{path}") as backend:
        backend.mailbox("good").send(1)
        planter = apsw.Connection(str(path))
        planter.execute("INSERT INTO queue (name) VALUES ('../{bad} name'), (X'FF'), ('?')")
        planter.close()
        assert backend.queues() == ["good"]
    assert "3 queues cannot be opened" in caplog.text


def test_a_table_of_somebody_else_is_left_alone(
    path: Path, opened: Callable[..., Database]
) -> None:
    box: SQLiteMailbox[object, None] = SQLiteMailbox("jobs", opened())
    box.send_batch([1, 2])
    planter = apsw.Connection(str(path))
    planter.execute('CREATE TABLE "my table" ("order" TEXT, "); DELETE FROM waiting; --" TEXT)')
    planter.execute("INSERT INTO \"my table\" VALUES (CAST(X'FF41' AS TEXT), '')")
    planter.execute("UPDATE waiting SET id = CAST(X'FF41' AS TEXT) WHERE seq = (1 << 40) + 1")
    assert [message.body for message in box.receive(max_messages=2)] == [1, 2]
    types = planter.execute('SELECT typeof("order") FROM "my table"').fetchall()
    assert types == [("text",)]
    planter.close()
