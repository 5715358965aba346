"""What is special to the store on SQLite: transactions, the line and its holes, receipts."""

import threading
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.sqlite import SQLiteReplyStore, SQLiteStore
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.runtime.mailbox import MailboxClosedError, MailboxError, MailboxFullError
from weakincentives.runtime.mailbox.store import Outgoing


def ids(store: SQLiteStore, count: int = 1000) -> list[str]:
    return [message.id for message in store.lease(count, 30).messages]


def test_together_commits_all_or_nothing(opened: Callable[..., Database]) -> None:
    database = opened()
    store, other = SQLiteStore(database, "jobs"), SQLiteStore(database, "other")
    replies = SQLiteReplyStore[int](database)
    with store.together():
        replies.create("reply", ttl=60)
        store.put((Outgoing("a", b"1"),))
        other.put((Outgoing("b", b"2", given=True),))
        assert [seen.id for seen in store.peek(5)] == ["a"]
    assert ids(store) == ["a"]
    with pytest.raises(ZeroDivisionError), store.together():
        replies.delete("reply")
        store.put((Outgoing("c", b"3"),))
        assert ids(other) == ["b"]
        raise ZeroDivisionError
    assert replies.get("reply") is not None
    assert ids(store) == []
    assert ids(other) == ["b"]


def test_a_queue_that_was_rolled_back_does_not_lend_its_number_to_another(
    opened: Callable[..., Database],
) -> None:
    database = opened()
    first, second = SQLiteStore(database, "first"), SQLiteStore(database, "second")
    with pytest.raises(ZeroDivisionError), first.together():
        first.put((Outgoing("a", b"1"),))
        assert ids(first) == ["a"]
        raise ZeroDivisionError
    second.put((Outgoing("b", b"2"),))
    first.put((Outgoing("c", b"3"),))
    assert (ids(first), ids(second)) == (["c"], ["b"])


def test_a_step_that_failed_cannot_be_swallowed(opened: Callable[..., Database]) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs", max_size=1)
    with pytest.raises(MailboxFullError), store.together():
        store.put((Outgoing("a", b"1"),))
        with pytest.raises(MailboxFullError):
            store.put((Outgoing("b", b"2"),))
    assert store.stats().pending == 0


def test_waiters_are_told_only_after_the_commit(opened: Callable[..., Database]) -> None:
    store = SQLiteStore(opened(), "jobs")
    listener = store.listen()
    listener.lease(1, 30, 0.0)
    seen: list[str] = []
    waiter = threading.Thread(
        target=lambda: seen.extend(m.id for m in listener.lease(1, 30, 30.0).messages)
    )
    waiter.start()
    with store.together():
        store.put((Outgoing("a", b"1"),))
        waiter.join(0.05)
        assert waiter.is_alive()
    waiter.join(10)
    listener.close()
    assert seen == ["a"]


def test_other_threads_wait_for_a_transaction_and_do_not_join_it(store: SQLiteStore) -> None:
    inside, left = threading.Event(), threading.Event()

    def send() -> None:
        inside.wait(10)
        store.put((Outgoing("theirs", b"1"),))
        left.set()

    thread = threading.Thread(target=send)
    thread.start()
    with pytest.raises(ZeroDivisionError), store.together():
        store.put((Outgoing("ours", b"1"),))
        inside.set()
        assert not left.wait(0.05)
        raise ZeroDivisionError
    thread.join(10)
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
    store.put((Outgoing("a", b"1"),))
    store.lease(1, 30)
    assert list(store.acknowledge((handle,))) == [False]
    assert list(store.release((handle, handle), 0)) == [False, False]
    assert list(store.extend((handle,), 5)) == [False]
    assert store.stats().in_flight == 1


def test_redelivered_messages_go_to_the_back(store: SQLiteStore, clock: TwoClocks) -> None:
    store.put([Outgoing(name, b"") for name in "abcd"])
    first, second = store.lease(2, 10).messages
    store.release((first.handle,), 0)
    assert [seen.id for seen in store.peek(10)] == ["c", "d", "a"]
    clock.advance(11)
    assert [seen.id for seen in store.peek(10)] == ["c", "d", "a", "b"]
    assert [seen.id for seen in store.peek(2, 2)] == ["a", "b"]
    assert [seen.id for seen in store.peek(2, 3)] == ["b"]
    assert ids(store) == ["c", "d", "a", "b"]
    assert second.delivery_count == 1


def test_what_is_sent_after_a_nack_does_not_overtake_it(store: SQLiteStore) -> None:
    store.put([Outgoing(name, b"") for name in "ab"])
    first, _ = store.lease(2, 10).messages
    store.release((first.handle,), 0)
    store.put([Outgoing(name, b"") for name in "cd"])
    (taken,) = store.lease(1, 30).messages
    assert (taken.id, taken.nack_count) == ("a", 1)
    assert list(store.release((first.handle,), 0)) == [False]
    assert ids(store) == ["c", "d"]


def test_ids_are_forgotten_after_five_minutes_and_not_while_queued(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    message = (Outgoing("chosen", b"1", given=True),)
    store.put(message)
    clock.advance(299)
    store.put(message)
    (leased,) = store.lease(5, 1000).messages
    clock.advance(500)
    store.put(message)
    assert store.stats()[:3] == (0, 1, 0)
    store.acknowledge((leased.handle,))
    store.put(message)
    (leased,) = store.lease(5, 1000).messages
    store.acknowledge((leased.handle,))
    store.put(message)
    assert store.stats()[:3] == (0, 0, 0)
    clock.advance(301)
    store.put((Outgoing("another", b"1", given=True),))
    assert database.read("SELECT id FROM known") == [("another",)]


def test_queues_of_one_file_do_not_mix(opened: Callable[..., Database]) -> None:
    database = opened()
    stores = [SQLiteStore(database, f"queue-{number}") for number in range(5)]
    for number, store in enumerate(stores):
        store.put([Outgoing(f"{number}-{n}", b"", n % 2 * 5.0) for n in range(4)])
    for store in stores[1:3]:
        assert store.purge() == 4
    assert [store.stats()[:3] for store in stores] == [
        (2, 0, 2),
        (0,) * 3,
        (0,) * 3,
        *[(2, 0, 2)] * 2,
    ]
    assert ids(stores[4]) == ["4-0", "4-2"]


def test_a_closed_database_says_so(opened: Callable[..., Database]) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    store.put((Outgoing("a", b"1"),))
    database.close()
    database.close()
    for step in (store.stats, store.purge, lambda: store.lease(1, 1)):
        with pytest.raises(MailboxClosedError, match="was closed"):
            step()


def test_leasing_by_id_leaves_nothing_behind(opened: Callable[..., Database]) -> None:
    database = opened()
    store = SQLiteStore(database, "dead letters")
    for number in range(20):
        store.put((Outgoing(str(number), b""),))
        (message,) = store.lease(1, 30, ids=[str(number)]).messages
        store.acknowledge((message.handle,))
    assert database.read("SELECT count(*) FROM hole") == [(1,)]
    assert store.stats()[:3] == (0, 0, 0)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "delay", "lease", "ids", "ack", "nack", "pass", "purge"]),
        st.integers(0, 30),
    ),
    max_size=60,
)


@given(steps=STEPS)
@settings(max_examples=60, deadline=None)
def test_the_length_of_the_line_needs_no_counting(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    clock = TwoClocks()
    path = tmp_path_factory.mktemp("line") / "box.db"
    database = Database(path, "normal", clock=clock, boot_id="boot")
    store, neighbour = SQLiteStore(database, "jobs", retention=100), SQLiteStore(database, "next")
    handles: list[str] = []
    for number, (step, amount) in enumerate(steps):
        names = [f"{number}-{n}" for n in range(amount % 5 + 1)]
        if step == "put":
            store.put([Outgoing(name, b"", given=amount > 20) for name in names])
            neighbour.put((Outgoing(names[0], b""),))
        elif step == "delay":
            store.put([Outgoing(name, b"", amount / 2 + 0.1) for name in names])
        elif step == "lease":
            handles += [m.handle for m in store.lease(len(names), 10).messages]
        elif step == "ids":
            wanted = [seen.id for seen in store.peek(2, amount % 7)]
            taken = store.lease(1, 10, ids=[*wanted, "nobody"]).messages
            assert sorted(m.id for m in taken) == sorted(wanted)
            handles += [m.handle for m in taken]
        elif step == "ack":
            store.acknowledge(handles[-2:])
        elif step == "nack":
            store.release(handles[:1], amount % 2 * 3.0)
        elif step == "pass":
            clock.advance(amount)
        else:
            store.purge()
        _check_counts(store, database)
    assert database.read("PRAGMA integrity_check") == [("ok",)]
    database.close()


def _check_counts(store: SQLiteStore, database: Database) -> None:
    queue = "(SELECT id FROM queue WHERE name = 'jobs')"
    now = database.time.now_us()
    ((line, oldest),) = database.read(
        f"SELECT count(*), min(sent_us) FROM waiting WHERE queue = {queue}"
    )
    ((due, leased, delayed, oldest_due),) = database.read(
        f"SELECT count(*) FILTER (WHERE visible_us <= {now}),"
        f" count(*) FILTER (WHERE visible_us > {now} AND leased),"
        f" count(*) FILTER (WHERE visible_us > {now} AND NOT leased),"
        f" min(sent_us) FILTER (WHERE visible_us <= {now}) FROM held WHERE queue = {queue}"
    )
    times = [time for time in (oldest, oldest_due) if time is not None]
    age = (now - min(times)) / 1e6 if times else None
    assert store.stats() == (line + due, leased, delayed, age)
    assert len(store.peek(1000)) == line + due


def test_error_in_a_statement_is_a_mailbox_error(opened: Callable[..., Database]) -> None:
    database = opened()
    with pytest.raises(MailboxError, match="no such table"):
        database.change("INSERT INTO nowhere VALUES (1)", ())
    with pytest.raises(MailboxError, match="no such table"):
        database.read("SELECT * FROM nowhere")
    with pytest.raises(MailboxError, match="no such table"), database.transaction as connection:
        connection.execute("SELECT * FROM nowhere")
    assert not database.in_transaction
