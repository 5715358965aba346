"""What is special to the store on SQLite: transactions, the line and its holes, receipts."""

import threading
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.sqlite import SQLiteReplyStore, SQLiteStore, due
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.sqlite.replies import SQLiteReplyTable
from weakincentives.runtime.mailbox import MailboxClosedError, MailboxError
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.seam.optional_protocols import Answer, NewReply, ReplyValue
from weakincentives.runtime.mailbox.seam.store import Leased, Outgoing, QueueStats
from weakincentives.runtime.mailbox.testing import driven


def ids(store: SQLiteStore, count: int = 1000) -> list[str]:
    return [message.id for message in store.lease_now(count, 30).messages]


def leased(store: SQLiteStore) -> Leased:
    (message,) = store.lease_now(1, 30).messages
    return message


def test_answers_go_with_the_acknowledgement(opened: Callable[..., Database]) -> None:
    database = opened()
    store, other = SQLiteStore(database, "jobs"), SQLiteStore(database, "other")
    table = SQLiteReplyTable(database)
    driven(store.put_expecting(Outgoing("a", b"1"), table, NewReply("reply", 60, "owner")))
    store.put_now([Outgoing("b", b"2"), Outgoing("c", b"3")])
    first, second = store.lease_now(2, 30).messages
    assert store.carries(table)
    assert store.carries(other)
    answers = [
        Answer(first.handle, table, ReplyValue("reply", b"5", "owner")),
        Answer(second.handle, other, Outgoing("d", b"4", given=True)),
        Answer("7.7", other, Outgoing("of a lease that is over", b"5")),
    ]
    handles = [first.handle, second.handle, "7.7"]
    leases = store.lease_now(1, 30, acknowledge=handles, answers=answers)
    assert [message.id for message in leases.messages] == ["c"]
    assert leases.acknowledged == [True, True, False]
    row = driven(table.get("reply"))
    assert row is not None
    assert (row.state, row.payload) == ("resolved", b"5")
    assert ids(other) == ["d"]


def test_many_answers_to_one_queue_are_told_of_at_once(
    opened: Callable[..., Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time that a waiter of another process is told costs as much as a message."""
    database, told = opened(), []
    store, other = SQLiteStore(database, "jobs"), SQLiteStore(database, "other")
    store.put_now([Outgoing(str(number), b"1") for number in range(20)])
    done, rest = store.lease_now(10, 30).messages, store.lease_now(10, 30).messages
    monkeypatch.setattr(database.file.wake, "notify", lambda key, times: told.append((key, times)))
    for step, messages in ((store.acknowledge_now, done), (settle_and_lease(store), rest)):
        step(
            [message.handle for message in messages],
            answers=[
                Answer(message.handle, other, Outgoing(f"to {message.id}", b"2"))
                for message in messages
            ],
        )
    assert told == [(other.news, 10)] * 2
    assert len(ids(other)) == 20


def settle_and_lease(store: SQLiteStore) -> Callable[..., object]:
    return lambda handles, answers: store.lease_now(1, 30, acknowledge=handles, answers=answers)


def test_answers_that_fail_leave_everything_as_it_was(opened: Callable[..., Database]) -> None:
    database = opened()
    store, other = SQLiteStore(database, "jobs"), SQLiteStore(database, "other")
    replies = SQLiteReplyStore[int](database)
    driven(store.put_expecting(Outgoing("a", b"1"), replies._table, NewReply("reply", 60, "owner")))
    message = leased(store)
    answers = [
        Answer(message.handle, replies._table, ReplyValue("reply", b"5", "owner")),
        Answer(message.handle, other, Outgoing("b", object())),
    ]
    with pytest.raises(TypeError):
        store.acknowledge_now([message.handle], answers=answers)
    with pytest.raises(TypeError):
        store.lease_now(1, 30, acknowledge=[message.handle], answers=answers)
    entry = replies.get("reply")
    assert entry is not None
    assert entry.state == "pending"
    assert ids(other) == []
    assert list(store.acknowledge_now([message.handle])) == [True]


def test_only_what_is_in_the_same_file_is_carried(
    opened: Callable[..., Database], tmp_path: Path
) -> None:
    database, strict = opened(), opened()
    store = SQLiteStore(database, "jobs")
    assert not store.carries(SQLiteStore(strict, "jobs"))
    assert not store.carries(SQLiteStore(database, "full", max_size=1))
    assert not store.carries(SQLiteReplyStore[int](tmp_path / "other.db")._table)
    assert not store.carries(InMemoryStore("jobs"))


def test_a_queue_that_was_rolled_back_does_not_lend_its_number_to_another(
    opened: Callable[..., Database],
) -> None:
    database = opened()
    first, second = SQLiteStore(database, "first"), SQLiteStore(database, "second")
    with pytest.raises(TypeError):
        first.put_now((Outgoing("a", object()),))
    second.put_now((Outgoing("b", b"2"),))
    first.put_now((Outgoing("c", b"3"),))
    assert (ids(first), ids(second)) == (["c"], ["b"])


def test_other_threads_wait_for_a_transaction_and_do_not_join_it(
    opened: Callable[..., Database],
) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    inside, left = threading.Event(), threading.Event()

    def send() -> None:
        inside.wait(60)
        store.put_now((Outgoing("theirs", b"1"),))
        left.set()

    def fail(connection: apsw.Connection) -> None:
        store.put_in(connection, (Outgoing("ours", b"1"),))
        inside.set()
        assert not left.wait(0.05)
        raise ZeroDivisionError

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(ZeroDivisionError):
        database.transact(fail)
    thread.join(120)
    assert ids(store) == ["theirs"]


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "x",
        "1",
        "1.",
        ".1",
        "1.2.3",
        "-1.5",
        "9" * 40 + ".1",
        "1." + "9" * 19,
        "1.1; DROP",
        "\u0661.\u0661",
    ],
)
def test_what_is_no_handle_is_refused(store: SQLiteStore, handle: str) -> None:
    store.put_now((Outgoing("a", b"1"),))
    store.lease_now(1, 30)
    assert list(store.acknowledge_now((handle,))) == [False]
    assert list(driven(store.release((handle, handle), 0))) == [False, False]
    assert list(driven(store.extend((handle,), 5))) == [False]
    assert driven(store.stats()).in_flight == 1


def test_redelivered_messages_go_to_the_back(store: SQLiteStore, clock: TwoClocks) -> None:
    store.put_now([Outgoing(name, b"") for name in "abcd"])
    first, second = store.lease_now(2, 10).messages
    driven(store.release((first.handle,), 0))
    assert [seen.id for seen in driven(store.peek(10))] == ["c", "d", "a"]
    clock.advance(11)
    assert [seen.id for seen in driven(store.peek(10))] == ["c", "d", "a", "b"]
    assert [seen.id for seen in driven(store.peek(2, 2))] == ["a", "b"]
    assert [seen.id for seen in driven(store.peek(2, 3))] == ["b"]
    assert ids(store) == ["c", "d", "a", "b"]
    assert second.delivery_count == 1


def test_what_is_sent_after_a_nack_does_not_overtake_it(store: SQLiteStore) -> None:
    store.put_now([Outgoing(name, b"") for name in "ab"])
    first, _ = store.lease_now(2, 10).messages
    driven(store.release((first.handle,), 0))
    store.put_now([Outgoing(name, b"") for name in "cd"])
    (taken,) = store.lease_now(1, 30).messages
    assert (taken.id, taken.nack_count) == ("a", 1)
    assert list(driven(store.release((first.handle,), 0))) == [False]
    assert ids(store) == ["c", "d"]


def test_ids_are_forgotten_after_five_minutes_and_not_while_queued(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    message = (Outgoing("chosen", b"1", given=True),)
    store.put_now(message)
    clock.advance(299)
    store.put_now(message)
    (leased,) = store.lease_now(5, 1000).messages
    clock.advance(500)
    store.put_now(message)
    assert driven(store.stats())[:3] == (0, 1, 0)
    store.acknowledge_now((leased.handle,))
    store.put_now(message)
    (leased,) = store.lease_now(5, 1000).messages
    store.acknowledge_now((leased.handle,))
    store.put_now(message)
    assert driven(store.stats())[:3] == (0, 0, 0)
    clock.advance(301)
    store.put_now((Outgoing("another", b"1", given=True),))
    assert database.read("SELECT id FROM known") == [("another",)]


def test_queues_of_one_file_do_not_mix(opened: Callable[..., Database]) -> None:
    database = opened()
    stores = [SQLiteStore(database, f"queue-{number}") for number in range(5)]
    for number, store in enumerate(stores):
        store.put_now([Outgoing(f"{number}-{n}", b"", n % 2 * 5.0) for n in range(4)])
    for store in stores[1:3]:
        assert driven(store.purge()) == 4
    assert [driven(store.stats())[:3] for store in stores] == [
        (2, 0, 2),
        (0,) * 3,
        (0,) * 3,
        *[(2, 0, 2)] * 2,
    ]
    assert ids(stores[4]) == ["4-0", "4-2"]


def test_a_closed_database_says_so(opened: Callable[..., Database]) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    store.put_now((Outgoing("a", b"1"),))
    database.close()
    database.close()
    for step in (store.stats, store.purge, lambda: store.lease(1, 1)):
        with pytest.raises(MailboxClosedError, match="was closed"):
            driven(step())


def test_leasing_by_id_leaves_nothing_behind(opened: Callable[..., Database]) -> None:
    database = opened()
    store = SQLiteStore(database, "dead letters")
    for number in range(20):
        store.put_now((Outgoing(str(number), b""),))
        (message,) = store.lease_now(1, 30, ids=[str(number)]).messages
        store.acknowledge_now((message.handle,))
    assert database.read("SELECT count(*) FROM hole") == [(1,)]
    assert driven(store.stats())[:3] == (0, 0, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "delay", "lease", "ids", "ack", "nack", "undo", "cancel", "pass", "purge"]
        ),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_the_length_of_the_line_needs_no_counting(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    _take_steps(steps, tmp_path_factory)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_leases_in_the_index_are_counted_and_come_back(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """As above, but each lease is put into the index as soon as possible."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(due, "FEW", 0)
        patch.setattr(due, "INDEX_AFTER_US", 1)
        patch.setattr(due, "INDEX_AT_ONCE", 2)
        patch.setattr(due, "WALK_US", 0)
        _take_steps(steps, tmp_path_factory)


def _take_steps(steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    clock = TwoClocks()
    path = tmp_path_factory.mktemp("line") / "box.db"
    database = open_database(path, "normal", clock=clock, boot_id="boot")
    store, neighbour = SQLiteStore(database, "jobs", retention=100), SQLiteStore(database, "next")
    handles: list[str] = []
    sent: list[str] = []
    for number, (step, amount) in enumerate(steps):
        names = [f"{number}-{n}" for n in range(amount % 5 + 1)]
        if step in ("put", "delay"):
            sent += names
        if step == "put":
            store.put_now([Outgoing(name, b"", given=amount > 20) for name in names])
            neighbour.put_now((Outgoing(names[0], b""),))
        elif step == "delay":
            store.put_now([Outgoing(name, b"", amount / 2 + 0.1) for name in names])
        elif step == "lease":
            handles += [m.handle for m in store.lease_now(len(names), 10).messages]
        elif step == "ids":
            wanted = [seen.id for seen in driven(store.peek(2, amount % 7))]
            taken = store.lease_now(1, 10, ids=[*wanted, "nobody"]).messages
            assert sorted(m.id for m in taken) == sorted(wanted)
            handles += [m.handle for m in taken]
        elif step == "ack":
            store.acknowledge_now(handles[-2:])
        elif step == "nack":
            driven(store.release(handles[:1], amount % 2 * 3.0))
        elif step == "undo":
            driven(store.release(handles[amount % 3 :][:3], amount // 4 * 3.0, "undone"))
        elif step == "cancel":
            _cancel(store, sent[amount:][:3])
        elif step == "pass":
            clock.advance(amount)
        else:
            driven(store.purge())
        _check_counts(store, database)
    assert database.read("PRAGMA integrity_check") == [("ok",)]
    for _ in range(3):
        clock.advance(30)
        taken = [message.id for message in store.lease_now(1000, 30).messages]
        assert driven(store.stats())[:3] == (0, len(taken), 0), (
            "something that is due did not come back"
        )
    database.close()


def _cancel(store: SQLiteStore, ids: list[str]) -> None:
    before = driven(store.stats())
    payloads = driven(store.cancel(ids))
    after = driven(store.stats())
    gone = sum(before[:3]) - sum(after[:3])
    assert after.in_flight == before.in_flight
    assert 0 <= gone <= len(payloads) - payloads.count(None)
    assert driven(store.cancel(ids)) == [None] * len(ids)


def _check_counts(store: SQLiteStore, database: Database) -> None:
    queue = "(SELECT id FROM queue WHERE name = 'jobs')"
    now = database.time.now_us()
    ((line, oldest),) = database.read(
        f"SELECT count(*), min(sent_us) FROM waiting WHERE queue = {queue}"
    )
    ((due, leased, delayed, oldest_due),) = database.read(
        f"SELECT count(*) FILTER (WHERE visible_us <= {now} AND NOT cancelled),"
        f" count(*) FILTER (WHERE visible_us > {now} AND leased),"
        f" count(*) FILTER (WHERE visible_us > {now} AND NOT leased),"
        f" min(sent_us) FILTER (WHERE visible_us <= {now} AND NOT cancelled)"
        f" FROM held WHERE queue = {queue}"
    )
    assert database.read(
        f"SELECT count(*) FROM held JOIN queue ON queue.id = queue"
        f" WHERE leased = 1 AND seq <= indexed_to AND queue = {queue}"
    ) == [(0,)]
    times = [time for time in (oldest, oldest_due) if time is not None]
    age = (now - min(times)) / 1e6 if times else None
    assert driven(store.stats()) == QueueStats(line + due, leased, delayed, age)
    assert len(driven(store.peek(1000))) == line + due


def test_error_in_a_statement_is_a_mailbox_error(opened: Callable[..., Database]) -> None:
    database = opened()
    with pytest.raises(MailboxError, match="no such table"):
        database.change("INSERT INTO nowhere VALUES (1)", ())
    with pytest.raises(MailboxError, match="no such table"):
        database.read("SELECT * FROM nowhere")
    with pytest.raises(MailboxError, match="no such table"):
        database.fetch("DELETE FROM nowhere RETURNING 1")
    writer = database.file.writer
    assert writer is not None
    assert not writer.in_transaction
