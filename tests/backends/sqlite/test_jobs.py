"""What a file knows of the jobs that callers wait for: starts, parts, how long replies are kept."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.forked import context
from tests.backends.sqlite import workers
from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.contract.driver import background
from weakincentives.contrib.mailbox.sqlite import SQLiteMailbox, SQLiteReplyStore, SQLiteStore
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.replies import FORGET_US, SQLiteReplyTable
from weakincentives.runtime.mailbox.seam.optional_protocols import NewReply
from weakincentives.runtime.mailbox.seam.process_name import process_name
from weakincentives.runtime.mailbox.seam.reply_table import (
    MOST_PART_BYTES,
    JobStart,
    ReplyState,
)
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

OWNER = "jobs/m"
START = JobStart("1.1", "host:1", 1)


@pytest.fixture
def table(opened: Callable[..., Database]) -> SQLiteReplyTable:
    return SQLiteReplyTable(opened())


def put(store: SQLiteStore, table: SQLiteReplyTable, **options: Any) -> None:
    """Send one message whose caller waits for a reply."""
    message = Outgoing("m", b"1", reply_id="r", **options)
    driven(store.put_expecting([message], table, [NewReply("r", 60, OWNER)]))


@contextlib.contextmanager
def statements(database: Database) -> Iterator[list[str]]:
    """Collect the statements that are run meanwhile on the connection for writing."""
    writer = database.file.writer
    assert writer is not None
    seen: list[str] = []

    def trace(_: object, sql: str, __: object) -> bool:
        seen.append(sql)
        return True

    writer.exec_trace = trace
    try:
        yield seen
    finally:
        writer.exec_trace = None


def test_a_lease_records_the_start(table: SQLiteReplyTable) -> None:
    store = SQLiteStore(table.database, "jobs")
    put(store, table)
    for number in (1, 2):
        (message,) = store.lease_now(1, 30).messages
        row = message.reply
        assert row == driven(table.get("r"))
        assert row is not None
        assert row.start is not None
        assert row.start[:3] == (message.handle, process_name(), number)
        assert (row.start.series, row.state) == (number, ReplyState.PENDING)
        driven(store.release([message.handle], 0))


@pytest.mark.parametrize("how", ["failed", "put_off", "undone"])
@pytest.mark.parametrize("delay", [0, 5])
def test_each_later_lease_records_the_start_too(
    table: SQLiteReplyTable, clock: TwoClocks, how: Any, delay: int
) -> None:
    store = SQLiteStore(table.database, "jobs")
    put(store, table, delay=1)
    clock.advance(2)
    (message,) = store.lease_now(1, 30).messages
    driven(store.release([message.handle], delay, how))
    clock.advance(10)
    (message,) = store.lease_now(1, 30, ids=["m"]).messages
    assert message.reply is not None
    assert message.reply.start is not None
    assert message.reply.start.handle == message.handle
    clock.advance(31)
    (message,) = store.lease_now(1, 30).messages
    assert message.reply is not None
    assert message.reply.start is not None
    assert message.reply.start.series == 3


def test_a_start_of_what_nobody_waits_for_is_seen_but_not_recorded(
    table: SQLiteReplyTable,
) -> None:
    store = SQLiteStore(table.database, "jobs")
    put(store, table)
    driven(table.cancel("r"))
    (message,) = store.lease_now(1, 30).messages
    assert message.reply is not None
    assert (message.reply.state, message.reply.start) == (ReplyState.CANCELLED, None)


def test_a_reply_in_another_file_is_asked_for_there(
    opened: Callable[..., Database], tmp_path: Path
) -> None:
    elsewhere = SQLiteReplyStore[Any](tmp_path / "replies.db")
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", opened(), reply_store=elsewhere)
    reply = box.send_expecting_reply("question")
    (message,) = box.receive()
    assert message._leased.reply is None
    assert driven(message._start()) is True
    assert reply.status().state == "running"
    message.reply("answer")
    assert reply.wait(timeout=30) == "answer"


def test_what_nobody_waits_for_costs_no_statement_more(opened: Callable[..., Database]) -> None:
    database = opened()
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", database)
    box.send_batch([1, 2, 3, 4])
    with statements(database) as seen:
        box.receive(max_messages=3)
    # BEGIN, take, leave, what is due and when, what never comes due, then COMMIT.
    assert len(seen) <= 9
    assert not [sql for sql in seen if "UPDATE reply" in sql or "FROM reply" in sql]


def test_a_request_and_its_reply_take_four_commits(opened: Callable[..., Database]) -> None:
    database = opened()
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", database)
    box.send_expecting_reply(0)
    with statements(database) as seen:
        reply = box.send_expecting_reply("question")
        assert seen.count("COMMIT") == 1
        message = box.receive(max_messages=2)[1]
        assert driven(message._start()) is True
        assert seen.count("COMMIT") == 2
        message.reply("answer")
        assert reply.wait() == "answer"
    # The reply with the acknowledgement; then what was read is removed, which is no transaction.
    assert seen.count("COMMIT") == 3
    assert len([sql for sql in seen if sql.startswith("DELETE FROM reply WHERE id")]) == 1
    assert len([sql for sql in seen if "UPDATE reply SET handle" in sql]) == 2


def test_a_batch_of_requests_is_one_commit(opened: Callable[..., Database]) -> None:
    database = opened()
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", database)
    box.send_expecting_reply(0)
    with statements(database) as seen:
        replies = box.send_batch_expecting_replies(list(range(200)))
    assert (seen.count("COMMIT"), len(replies)) == (1, 200)


def test_a_request_is_put_off_in_one_commit(opened: Callable[..., Database]) -> None:
    database = opened()
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", database)
    reply = box.send_expecting_reply("question", reply_timeout=100)
    messages = box.receive()
    with statements(database) as seen:
        assert box.release_batch(messages, 500, "put_off") == [True]
    assert seen.count("COMMIT") == 1
    ((lives,),) = database.read(
        "SELECT expires_us - created_us FROM reply WHERE id = ?", (reply.id,)
    )
    assert lives == 600 * 10**6


def parts_of(table: SQLiteReplyTable) -> int:
    ((count,),) = table.database.read("SELECT count(*) FROM reply_part")
    return int(count)


def emitted(table: SQLiteReplyTable, id: str = "r", **options: Any) -> None:
    assert driven(table.create(id, 60, OWNER, **options))
    driven(table.start(id, OWNER, START))
    assert driven(table.emit(id, OWNER, "1.1", [b"1", b"2"]))


@pytest.mark.parametrize("way", ["delete", "forget", "consume", "cleanup", "sweep"])
def test_however_a_reply_goes_its_parts_go_too(
    way: str, table: SQLiteReplyTable, clock: TwoClocks
) -> None:
    emitted(table)
    emitted(table, "another", keep=100_000)
    if way in ("delete", "forget"):
        driven(getattr(table, way)("r"))
    elif way == "consume":
        driven(table.resolve("r", b"1"))
        assert driven(table.consume("r")) is not None
    elif way == "cleanup":
        clock.advance(61)
        assert driven(table.cleanup_expired(10)) == 1
    else:
        clock.advance(62 + FORGET_US / 1e6)
        table._until_sweep, table._swept_to = 1, ""
        driven(table.create("new", 60))
    assert driven(table.get("r")) is None
    assert parts_of(table) == 2
    assert len(driven(table.parts("another", 0, 10))) == 2


def test_parts_of_sixteen_mebibytes_are_kept(table: SQLiteReplyTable) -> None:
    driven(table.create("r", 60, OWNER))
    driven(table.start("r", OWNER, START))
    size = 64_000
    batch = [bytes(size)] * 20
    for _ in range(14):
        assert driven(table.emit("r", OWNER, "1.1", batch))
    fit = MOST_PART_BYTES // size
    (oldest,) = driven(table.parts("r", 0, 1))
    assert oldest.number == 14 * 20 - fit
    assert parts_of(table) == fit
    row = driven(table.get("r"))
    assert row is not None
    assert row.parts == 280


def test_parts_need_no_fsync_of_their_own(path: Path) -> None:
    replies = SQLiteReplyStore[Any](path)
    table = replies._table
    database = table.database
    driven(table.create("r", 60, OWNER))
    driven(table.start("r", OWNER, START))
    with statements(database) as seen:
        driven(table.emit("r", OWNER, "1.1", [b"1"]))
        driven(table.resolve("r", b"1"))
    syncs = [sql for sql in seen if "synchronous" in sql]
    assert syncs == ["PRAGMA synchronous = 1", "PRAGMA synchronous = 2"]
    database.close()


def test_parts_reach_a_reader_in_another_process_and_all_readers_here(path: Path) -> None:
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", path)
    reply = box.send_expecting_reply("question", keep=600)
    readers = [background(lambda: [part.value for part in reply.parts(timeout=60)]) for _ in "ab"]
    waiting = [background(reply.wait, timeout=60) for _ in "ab"]
    worker = context.Process(target=workers.emit_and_reply, args=(str(path), 3))
    worker.start()
    for reader in readers:
        assert reader.result(120) == [0, 1, 2]
    assert [one.result(120) for one in waiting] == ["answer"] * 2
    worker.join(60)


def test_all_who_wait_for_a_reply_wake_at_once(path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("weakincentives.contrib.mailbox.sqlite.replies.LOOK_INTERVAL", 300.0)
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", path)
    reply = box.send_expecting_reply("question", keep=600)
    waiting = [background(box.reply(reply.id).wait, timeout=300) for _ in range(5)]
    worker = context.Process(target=workers.emit_and_reply, args=(str(path), 0))
    worker.start()
    assert [one.result(120) for one in waiting] == ["answer"] * 5
    worker.join(60)


@pytest.mark.parametrize("state", ["pending", "resolved", "failed", "cancelled"])
def test_a_kept_reply_is_neither_cleaned_up_nor_swept(
    state: str, table: SQLiteReplyTable, clock: TwoClocks
) -> None:
    driven(table.create("r", 60, OWNER, 10_000))
    if state == "cancelled":
        driven(table.cancel("r"))
    elif state != "pending":
        driven(table.resolve("r", b"1", failed=state == "failed"))
    clock.advance(9000)
    table._until_sweep, table._swept_to = 1, ""
    driven(table.create("another", 20_000))
    assert driven(table.cleanup_expired(10)) == 0
    row = driven(table.get("r"))
    assert row is not None
    assert row.state == ("expired" if state == "pending" else state)
    clock.advance(2000)
    assert driven(table.scan_expired(10)) == ["r"]
    clock.advance(FORGET_US / 1e6)
    table._until_sweep, table._swept_to = 1, ""
    driven(table.create("a third", 60))
    assert driven(table.get("r")) is None
