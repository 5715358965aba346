"""Cancelling in a file: where a message is found, and that nobody has to wait for the search."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.backends.sqlite.clocks import TwoClocks
from weakincentives.contrib.mailbox.sqlite import SQLiteStore, cancels
from weakincentives.contrib.mailbox.sqlite.database import Database
from weakincentives.runtime.mailbox import MailboxError
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven


def fill(store: SQLiteStore, names: str = "abcde", **options: Any) -> None:
    store.put_now([Outgoing(name, name.encode(), **options) for name in names])


def ids(store: SQLiteStore) -> list[str]:
    return [message.id for message in store.lease_now(1000, 30).messages]


@pytest.mark.parametrize("given", [False, True])
def test_a_message_is_taken_out_of_the_line(store: SQLiteStore, given: bool) -> None:
    fill(store, given=given)
    payloads = driven(store.cancel(["d", "nobody", "a", "d", "b"]))
    assert payloads == [b"d", None, b"a", None, b"b"]
    assert driven(store.stats()).pending == 2
    assert ids(store) == ["c", "e"]


def test_queues_are_apart(opened: Callable[..., Database]) -> None:
    database = opened()
    one, other = SQLiteStore(database, "one"), SQLiteStore(database, "other")
    assert driven(one.cancel(["a"])) == [None]
    fill(one, "a")
    fill(other, "b")
    assert driven(other.cancel(["a"])) == [None]
    assert driven(one.cancel(["a"])) == [b"a"]
    assert ids(other) == ["b"]


def test_a_cancelled_lease_ends_as_any_other_and_then_is_gone(
    store: SQLiteStore, clock: TwoClocks
) -> None:
    fill(store)
    store.lease_now(3, 10)
    assert driven(store.cancel(["b"])) == [b"b"]
    assert driven(store.stats())[:2] == (2, 3)
    clock.advance(11)
    assert driven(store.cancel(["b"])) == [None]
    assert driven(store.cancel(["c"])) == [b"c"]
    assert driven(store.stats()) == (3, 0, 0, 11.0, 0, False)
    assert [seen.id for seen in driven(store.peek(10))] == ["d", "e", "a"]
    leases = store.lease_now(1000, 30)
    assert [message.id for message in leases.messages] == ["d", "e", "a"]
    assert driven(store.stats())[:4] == (0, 3, 0, None)


def test_a_lease_that_ran_out_is_counted_though_its_message_is_dropped(
    store: SQLiteStore, clock: TwoClocks
) -> None:
    fill(store, "a")
    store.lease_now(1, 10)
    driven(store.cancel(["a"]))
    clock.advance(11)
    leases = store.lease_now(1, 10)
    assert (list(leases.messages), leases.expired) == ([], 1)
    assert driven(store.stats()) == (0, 0, 0, None, 0, False)


def test_one_of_a_batch_is_cancelled(store: SQLiteStore, clock: TwoClocks) -> None:
    for how, delay in (("failed", 0), ("put_off", 5), ("undone", 0), ("undone", 5)):
        fill(store)
        handles = [message.handle for message in store.lease_now(5, 60).messages]
        driven(store.cancel(["b"]))
        done = driven(store.release([*handles, "7.7"], delay, how))  # type: ignore[arg-type]
        assert list(done) == [True] * 5 + [False]
        clock.advance(6)
        messages = store.lease_now(10, 60).messages
        assert sorted(message.id for message in messages) == ["a", "c", "d", "e"]
        store.acknowledge_now([message.handle for message in messages])
        assert sum(driven(store.stats())[:3]) == 0


def test_the_state_of_many_leases_is_one_read(
    store: SQLiteStore, clock: TwoClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    handles = [message.handle for message in store.lease_now(4, 60).messages]
    driven(store.cancel(["c"]))
    driven(store.release(handles[:1], 0))
    database, reads = store._database, []
    read = database.read
    monkeypatch.setattr(database, "read", lambda *args: reads.append(args) or read(*args))
    states = driven(store.lease_states([*handles, "", "x.y", "1.1"]))
    assert states == ["ended", "held", "cancelled", "held", "ended", "ended", "ended"]
    assert len(reads) == 1
    assert driven(store.lease_states([])) == []
    clock.advance(61)
    assert set(driven(store.lease_states(handles))) == {"ended"}


def test_looking_for_a_message_takes_no_write_lock(store: SQLiteStore, path: Path) -> None:
    fill(store)
    writer = apsw.Connection(str(path))
    writer.execute("BEGIN IMMEDIATE")
    assert driven(store.cancel(["nobody"])) == [None]
    writer.execute("ROLLBACK")
    writer.close()


class Moves:
    """Lets a message move between the look for it and the step that cancels it."""

    def __init__(self, store: SQLiteStore, move: Callable[[], object], times: int) -> None:
        self._transact = store._database.transact
        self._move = move
        self.left = times

    def __call__(self, work: Any, *arguments: Any, **options: Any) -> Any:
        if work is cancels._cancel_at and self.left:
            self.left -= 1
            self._move()
        return self._transact(work, *arguments, **options)


@pytest.mark.parametrize("times", [1, 4, 49])
def test_a_message_that_moves_meanwhile_is_cancelled(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    fill(store, "a")

    def give_back() -> None:
        (message,) = store.lease_now(1, 60).messages
        fill(store, "x")
        driven(store.release([message.handle], 0))
        (other,) = store.lease_now(1, 60).messages
        store.acknowledge_now([other.handle])

    monkeypatch.setattr(store._database, "transact", Moves(store, give_back, times))
    assert driven(store.cancel(["a"])) == [b"a"]
    assert ids(store) == []


def test_a_message_that_is_leased_meanwhile_is_cancelled(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, "a")
    handles: list[str] = []

    def lease() -> None:
        handles.extend(message.handle for message in store.lease_now(1, 60).messages)

    monkeypatch.setattr(store._database, "transact", Moves(store, lease, 1))
    assert driven(store.cancel(["a"])) == [b"a"]
    assert driven(store.lease_states(handles)) == ["cancelled"]


def test_a_message_that_never_stands_still_is_an_error(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancels, "TRIES", 3)
    monkeypatch.setattr(cancels, "_cancel_at", lambda *_: {})
    fill(store, "a")
    with pytest.raises(MailboxError, match="could not be cancelled"):
        driven(store.cancel(["a"]))
    assert ids(store) == ["a"]


def test_an_id_that_its_sender_chose_is_found_by_an_index(store: SQLiteStore) -> None:
    fill(store)
    queries = store._queries or store._known_queue()
    assert queries is not None
    plan = [
        row[3]
        for row in store._database.read(f"EXPLAIN QUERY PLAN {queries['find_message']}", ("a",))
    ]
    searches = [step for step in plan if step.startswith("SEARCH")]
    assert "waiting_given" in searches[0]
    assert "held_given" in searches[1]
    assert all("PRIMARY KEY" in step for step in searches[2:])
