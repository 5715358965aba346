"""Files of earlier versions are brought up to date, under the lock, with all that is in them."""

import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.sqlite import SQLiteReplyStore, SQLiteStore
from weakincentives.contrib.mailbox.sqlite.connection import SCRIPTS
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.queries import read_script
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.runtime.mailbox.seam.reply_table import JobStart
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

VERSION_1 = Path(__file__).with_name("version_1.sql").read_text(encoding="utf-8")


@pytest.fixture
def old(path: Path) -> Path:
    """Make a file of version 1."""
    connection = apsw.Connection(str(path))
    connection.execute(VERSION_1)
    connection.close()
    return path


def schema_of(path: Path) -> set[tuple[str, str]]:
    connection = apsw.Connection(str(path))
    try:
        found = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql NOT NULL")
        return {(name, "".join(sql.split("--")[0].split())) for name, sql in found}
    finally:
        connection.close()


def columns_of(path: Path) -> dict[str, list[str]]:
    connection = apsw.Connection(str(path))
    try:
        tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
        return {
            name: [column[1] for column in connection.execute(f"PRAGMA table_info({name})")]
            for (name,) in tables.fetchall()
        }
    finally:
        connection.close()


def test_every_message_of_version_1_is_there(
    old: Path, opened: Callable[..., Database], clock: TwoClocks
) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    assert driven(store.stats())[:4] == (3, 1, 3, 20.0)
    assert [(m.id, m.payload, m.delivery_count, m.nack_count) for m in driven(store.peek(10))] == [
        ("new", b"1", 0, 0),
        ("named", b"2", 0, 0),
        ("again", b"3", 2, 1),
    ]
    store.put_now((Outgoing("named", b"twice", 0.0, True), Outgoing("done", b"twice", 0.0, True)))
    line = store.lease_now(10, 3600).messages
    assert [(m.id, m.delivery_count, m.put_off_count) for m in line] == [
        ("new", 1, 0),
        ("named", 1, 0),
        ("again", 3, 0),
    ]
    clock.advance(80)
    rest = store.lease_now(10, 3600).messages
    assert [(m.id, m.delivery_count, m.nack_count) for m in rest] == [
        ("leased", 2, 0),
        ("nacked too", 4, 3),
        ("nacked", 2, 1),
        ("later", 1, 0),
    ]
    assert [m.id for m in SQLiteStore(database, "others").lease_now(10, 60).messages] == [
        "elsewhere"
    ]
    assert database.read("PRAGMA integrity_check") == [("ok",)]


def test_a_lease_of_version_1_can_still_be_settled(
    old: Path, opened: Callable[..., Database]
) -> None:
    store = SQLiteStore(opened(), "jobs")
    handle = f"{(1 << 40) + 3}.77"
    assert driven(store.extend((handle,), 60)) == (True,)
    assert list(driven(store.release((handle,), 0, "put_off"))) == [True]
    assert [m.id for m in driven(store.peek(10))][-1] == "leased"


def test_a_caller_of_version_1_still_gets_its_reply(
    old: Path, opened: Callable[..., Database]
) -> None:
    replies: SQLiteReplyStore[int] = SQLiteReplyStore(opened(), value_type=int)
    assert replies.resolve("asked", 42)
    entry = replies.consume("asked")
    assert entry is not None
    assert entry.value == 42


@pytest.fixture
def second(old: Path) -> Path:
    """Make a file of version 2, with a lease in its index."""
    connection = apsw.Connection(str(old))
    connection.execute(read_script("version_2.sql"))
    connection.execute("PRAGMA user_version = 2")
    connection.execute("UPDATE held SET leased = 2 WHERE leased = 1")
    connection.execute("UPDATE queue SET indexed_to = (id << 40) + 3 WHERE name = 'jobs'")
    connection.execute("UPDATE reply SET owner = 'jobs/new'")
    connection.close()
    return old


def test_every_message_of_version_2_is_there(
    second: Path, opened: Callable[..., Database], clock: TwoClocks
) -> None:
    store = SQLiteStore(opened(), "jobs")
    assert driven(store.stats()) == (3, 1, 3, 20.0, 0, False)
    handle = f"{(1 << 40) + 3}.77"
    assert driven(store.lease_states([handle])) == ["held"]
    assert None not in driven(store.cancel(["leased", "named"]))
    assert driven(store.lease_states([handle])) == ["cancelled"]
    clock.advance(80)
    left = sorted(message.id for message in store.lease_now(10, 60).messages)
    assert left == ["again", "later", "nacked", "nacked too", "new"]
    assert driven(store.stats()) == (0, 5, 0, None, 0, False)


def test_a_reply_of_version_2_can_be_started_and_replayed(
    second: Path, opened: Callable[..., Database]
) -> None:
    table = SQLiteReplyStore[int](opened())._table
    row = driven(table.start("asked", "jobs/new", JobStart("1.1", "host:1", 1)))
    assert row is not None
    assert row.start is not None
    assert (row.start.series, row.parts, row.keep) == (1, 0, 0.0)
    # What its caller said that it would wait, for a replay.
    assert row.ttl == pytest.approx(row.expires_at - row.created_at)
    assert driven(table.resolve("asked", b"why", "jobs/new", failed=True))
    assert driven(table.reopen("asked", row.ttl, "jobs/again"))


def test_an_upgraded_file_is_like_a_new_one(
    old: Path, tmp_path: Path, opened: Callable[..., Database]
) -> None:
    opened().close()
    new = tmp_path / "new.db"
    open_database(new).close()
    assert columns_of(old) == columns_of(new)
    kinds = ("CREATEINDEX", "CREATETRIGGER")
    indexes = {item for item in schema_of(new) if item[1].startswith(kinds)}
    assert indexes <= schema_of(old)
    connection = apsw.Connection(str(old))
    assert connection.pragma("user_version") == len(SCRIPTS)
    connection.close()


def test_two_that_open_at_once_upgrade_once(old: Path) -> None:
    ready = threading.Barrier(4)
    errors: list[BaseException] = []

    def open_it() -> None:
        ready.wait(30)
        try:
            open_database(old, "normal").close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert errors == []


def test_an_upgrade_that_fails_changes_nothing(
    old: Path, opened: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = (schema_of(old), columns_of(old))
    script = "weakincentives.contrib.mailbox.sqlite.connection.read_script"
    with monkeypatch.context() as patch:
        patch.setattr(script, lambda name: "DROP TABLE hole; SELECT * FROM nowhere")
        with pytest.raises(Exception, match="no such table"):
            opened()
    assert (schema_of(old), columns_of(old)) == before
    assert driven(SQLiteStore(opened(), "jobs").stats()).pending == 3


def test_a_queue_of_version_3_can_be_paused(second: Path, opened: Callable[..., Database]) -> None:
    connection = apsw.Connection(str(second))
    connection.execute(read_script("version_3.sql"))
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    store = SQLiteStore(opened(), "jobs")
    driven(store.pause_table.pause("jobs", b"why"))
    driven(store.worker_table.write("me", b"{}", 60))
    assert store.lease_now(1, 60).messages == ()
    assert driven(store.pause_table.resume("jobs"))
    assert len(store.lease_now(1, 60).messages) == 1
    assert [row.entry for row in driven(store.worker_table.rows())] == [b"{}"]
