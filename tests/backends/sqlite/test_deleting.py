"""Deleting queues: other users of a file keep their ids, and must not write into what is gone."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from testkit.forked import context
from tests.backends.sqlite import workers
from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite import SQLiteStore, deleting
from weakincentives.contrib.mailbox.sqlite.backend import SQLiteBackend
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.runtime.mailbox import MailboxFullError, QueueNotEmptyError
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

TABLES = ("queue", "waiting", "held", "known", "hole")


def rows(database: Database) -> dict[str, int]:
    return {table: database.read(f"SELECT count(*) FROM {table}")[0][0] for table in TABLES}


def put(store: SQLiteStore, *ids: str, **options: Any) -> None:
    driven(store.put([Outgoing(id, b"1", **options) for id in ids]))


def leased(store: SQLiteStore, count: int = 10) -> list[str]:
    return [one.id for one in store.lease_now(count, 60).messages]


def test_nothing_of_a_deleted_queue_stays(opened: Callable[..., Database]) -> None:
    database = opened()
    store, other = SQLiteStore(database, "jobs"), SQLiteStore(database, "other")
    put(store, "a", "b", "c", given=True)
    put(store, "late", delay=60)
    driven(store.cancel(["b"]))
    store.lease_now(1, 60)
    put(other, "kept")
    assert driven(store.delete(True)) is True
    assert rows(database) == {"queue": 1, "waiting": 1, "held": 0, "known": 0, "hole": 0}
    assert leased(other) == ["kept"]


def test_an_id_is_never_used_again(opened: Callable[..., Database]) -> None:
    database = opened()
    store, stale = SQLiteStore(database, "jobs"), SQLiteStore(database, "jobs")
    put(store, "first")
    put(stale, "second")
    assert driven(store.delete(True)) is True
    assert driven(store.delete()) is False
    other = SQLiteStore(database, "other")
    put(other, "theirs")
    put(stale, "late", delay=60)
    put(stale, "third")
    assert leased(other) == ["theirs"]
    assert leased(store) == ["third"]
    assert database.read("SELECT name FROM queue ORDER BY id") == [("other",), ("jobs",)]


@pytest.mark.parametrize("options", [{}, {"given": True}, {"delay": 0.001}])
def test_a_message_for_a_queue_that_is_gone_makes_it_anew(
    opened: Callable[..., Database], clock: TwoClocks, options: dict[str, Any]
) -> None:
    database = opened()
    store, stale = SQLiteStore(database, "jobs"), SQLiteStore(database, "jobs")
    put(stale, "first")
    driven(store.delete(True))
    put(stale, "second", **options)
    clock.advance(1)
    assert leased(stale) == ["second"]
    assert driven(store.stats())[:3] == (0, 1, 0)


def test_nothing_is_deleted_if_there_are_messages(opened: Callable[..., Database]) -> None:
    database = opened()
    store = SQLiteStore(database, "jobs")
    put(store, "a", "b")
    before = rows(database)
    with pytest.raises(QueueNotEmptyError, match=r"2 messages \(2 pending"):
        driven(store.delete())
    assert rows(database) == before


def test_queues_that_nobody_needs_do_not_pile_up(
    opened: Callable[..., Database], clock: TwoClocks
) -> None:
    database = opened()
    box = SQLiteStore(database, "jobs")
    put(box, "waits")
    for number in range(300):
        replies = SQLiteStore(database, f"replies-{number}")
        put(replies, "answer")
        (answer,) = replies.lease_now(1, 60).messages
        assert driven(replies.acknowledge([answer.handle])) == (True,)
    names = SQLiteBackend(database).queues()
    assert "jobs" in names
    assert "replies-299" in names
    assert len(names) <= deleting.KEPT + 2 * deleting.LOOKS
    assert leased(box) == ["waits"]


def test_a_queue_that_remembers_ids_is_kept_until_they_are_forgotten(
    opened: Callable[..., Database], clock: TwoClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deleting, "KEPT", 1)
    monkeypatch.setattr(deleting, "LOOKS", 1000)
    monkeypatch.setattr("random.randrange", lambda most: 0)
    database = opened()
    box = SQLiteStore(database, "jobs")
    put(box, "order-7", given=True)
    (message,) = box.lease_now(1, 60).messages
    driven(box.acknowledge([message.handle]))
    for number in range(3):
        put(SQLiteStore(database, f"other-{number}"), "waits")
    put(box, "order-7", given=True)
    assert leased(box) == []  # a repeat, still
    clock.advance(301)
    put(SQLiteStore(database, "another"), "waits")
    assert "jobs" not in SQLiteBackend(database).queues()
    put(box, "order-7", given=True)
    assert leased(box) == ["order-7"]


def test_a_file_that_has_made_too_many_queues_says_so(opened: Callable[..., Database]) -> None:
    database = opened()
    database.fetch(f"INSERT INTO queue (id, name) VALUES ({deleting.MOST_IDS - 1}, 'last')")
    put(SQLiteStore(database, "last"), "fits")
    assert leased(SQLiteStore(database, "last")) == ["fits"]
    with pytest.raises(MailboxFullError, match="begin a new file"):
        put(SQLiteStore(database, "one more"), "does not")
    assert SQLiteBackend(database).queues() == ["last"]


def test_what_other_processes_send_while_a_queue_is_deleted_arrives(path: Path) -> None:
    database = open_database(path, "normal")
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", database)
    box.send(-1)
    each, senders = 150, 2
    processes = [
        context.Process(target=workers.send_each, args=(str(path), n * each, each))
        for n in range(senders)
    ]
    for process in processes:
        process.start()
    got: list[int] = []
    deleted = 0
    while len(got) < each * senders + 1:
        messages = box.receive(max_messages=3, wait_time_seconds=60)
        assert messages, f"{len(got)} messages came"
        got += [message.body for message in messages]
        assert all(box.acknowledge_batch(messages))
        try:
            deleted += driven(box.store.delete())
        except QueueNotEmptyError:
            pass
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(got) == list(range(-1, each * senders))
    assert deleted > 0
    database.close()
