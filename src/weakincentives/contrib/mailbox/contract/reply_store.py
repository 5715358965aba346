"""The conformance suite for reply stores."""

import threading
from datetime import timedelta
from typing import Any

import pytest

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.envelope import Envelope, JsonSealer
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.seam.reply_table import ReplyState
from weakincentives.serde import Codec

from .driver import DEADLINE, Proxy, background
from .harness import ContractBase
from .reply_jobs import ReplyJobs

__all__ = ["ReplyStoreContract"]


class ReplyStoreContract(ReplyJobs, ContractBase):
    """Tests everything a reply store promises; override `make_reply_store`."""

    def make_reply_store(self) -> Any:
        """Return a new reply store."""
        raise NotImplementedError(f"{type(self).__name__} must say how to make_reply_store()")

    def store(self) -> Any:
        """Make a reply store, called as the current test requires (sync or async)."""
        return Proxy(self.make_reply_store(), self.driver)

    def made(self, ttl: float = 60) -> tuple[Any, str]:
        """Return a store with one pending reply, and the reply's id."""
        store, id = self.store(), new_id()
        assert store.create(id, ttl=ttl) is True
        return store, id

    def test_a_new_reply_is_pending(self) -> None:
        store, id = self.made(ttl=100)
        entry = store.get(id)
        assert (entry.id, entry.state, entry.value) == (id, ReplyState.PENDING, None)
        assert entry.resolved_at is None
        lifetime = entry.expires_at - entry.created_at
        assert abs(lifetime - timedelta(seconds=100)) < timedelta(seconds=2)
        assert entry.created_at.tzinfo is not None

    def test_an_id_is_taken_once(self) -> None:
        store, id = self.made()
        assert store.create(id, ttl=60) is False
        store.resolve(id, "value")
        assert store.create(id, ttl=60) is False
        assert store.get(id).value == "value"

    def test_an_unknown_reply_is_nothing(self) -> None:
        store, id = self.store(), new_id()
        assert store.get(id) is None
        assert store.consume(id) is None
        assert store.resolve(id, 1) is False
        assert store.cancel(id) is False
        assert store.delete(id) is False
        assert store.get(id) is None

    def test_resolve_keeps_the_first_value(self) -> None:
        store, id = self.made()
        assert store.resolve(id, {"n": [1, None, "x"]}) is True
        entry = store.get(id)
        assert (entry.state, entry.value) == (ReplyState.RESOLVED, {"n": [1, None, "x"]})
        assert entry.resolved_at >= entry.created_at
        assert store.resolve(id, "second") is False
        assert store.cancel(id) is False
        assert store.get(id).value == {"n": [1, None, "x"]}

    def test_a_table_lets_only_the_owner_answer(self) -> None:
        store, owned, free = self.store(), new_id(), new_id()
        table = store.raw._table
        call = self.driver.call
        assert call(table.create, owned, 60.0, "orders/1") is True
        assert call(table.create, free, 60.0) is True
        assert call(table.get, owned).owner == "orders/1"
        assert call(table.get, free).owner is None
        value = JsonSealer(Codec(), 1000).seal(Envelope("value"))
        for stranger in ("orders/2", "other/1", ""):
            assert call(table.resolve, owned, value, stranger or "-") is False
        assert call(table.get, owned).state == ReplyState.PENDING
        assert call(table.resolve, owned, value, "orders/1") is True
        assert call(table.resolve, free, value, "orders/1") is True

    def test_without_an_owner_whoever_knows_the_id_may_answer(self) -> None:
        store, id = self.store(), new_id()
        assert self.driver.call(store.raw._table.create, id, 60.0, "orders/1") is True
        assert store.resolve(id, "value") is True

    def test_a_value_may_be_none(self) -> None:
        store, id = self.made()
        assert store.resolve(id, None) is True
        entry = store.get(id)
        assert (entry.state, entry.value) == (ReplyState.RESOLVED, None)

    def test_a_cancelled_reply_takes_no_value(self) -> None:
        store, id = self.made()
        assert store.cancel(id) is True
        assert store.cancel(id) is False
        assert store.resolve(id, 1) is False
        entry = store.get(id)
        assert (entry.state, entry.value) == (ReplyState.CANCELLED, None)
        assert store.consume(id) is None

    def test_consume_takes_a_resolved_reply_once(self) -> None:
        store, id = self.made()
        assert store.consume(id) is None
        assert store.get(id).state == ReplyState.PENDING
        store.resolve(id, "value")
        entry = store.consume(id)
        assert (entry.id, entry.state, entry.value) == (id, ReplyState.RESOLVED, "value")
        assert store.consume(id) is None
        assert store.get(id) is None
        assert store.resolve(id, "again") is False

    def test_delete_removes_in_every_state(self) -> None:
        store, pending = self.made()
        resolved, cancelled = new_id(), new_id()
        store.create(resolved, ttl=60)
        store.resolve(resolved, 1)
        store.create(cancelled, ttl=60)
        store.cancel(cancelled)
        for id in (pending, resolved, cancelled):
            assert store.delete(id) is True
            assert store.delete(id) is False
            assert store.get(id) is None
            assert store.create(id, ttl=60) is True

    def test_an_expired_reply_takes_no_value(self) -> None:
        store, id = self.made(ttl=self.moment)
        self.elapse(self.moment)
        entry = store.get(id)
        assert entry is None or entry.state == ReplyState.EXPIRED
        assert store.resolve(id, 1) is False
        assert store.cancel(id) is False
        assert store.consume(id) is None

    def test_a_resolved_reply_outlives_its_time(self) -> None:
        store, id = self.made(ttl=self.moment * 4)
        before = store.get(id).expires_at
        assert store.resolve(id, "kept") is True
        entry = store.get(id)
        assert entry.expires_at - before > timedelta(seconds=60 - self.moment * 4 - 2)
        self.elapse(self.moment * 4)
        assert store.get(id).value == "kept"
        assert store.consume(id).value == "kept"

    def test_resolving_does_not_shorten_a_life(self) -> None:
        store, id = self.made(ttl=1000)
        before = store.get(id).expires_at
        store.resolve(id, 1)
        assert abs(store.get(id).expires_at - before) < timedelta(seconds=2)

    def test_a_resolved_reply_goes_after_a_minute(self) -> None:
        self.needs_fake_clock()
        store, id = self.made(ttl=1)
        store.resolve(id, 1)
        self.elapse(59)
        assert store.get(id).value == 1
        self.elapse(2)
        assert store.consume(id) is None
        entry = store.get(id)
        assert entry is None or entry.state == ReplyState.EXPIRED

    def test_what_is_expired_is_found_and_removed(self) -> None:
        store, alive = self.made(ttl=1000)
        pending, cancelled = new_id(), new_id()
        for id in (pending, cancelled):
            store.create(id, ttl=self.moment * 4)
        store.cancel(cancelled)
        assert not {pending, cancelled, alive} & set(store.scan_expired(limit=1000))
        self.elapse(self.moment * 4)
        found = set(store.scan_expired(limit=1000))
        assert alive not in found
        # A backend that removes expired entries itself has nothing left to find.
        for id in (pending, cancelled):
            assert id in found or store.get(id) is None
        removed = store.cleanup_expired(limit=1000)
        assert isinstance(removed, int)
        assert removed >= len({pending, cancelled} & found)
        assert store.get(pending) is None
        assert store.get(cancelled) is None
        assert store.get(alive).state == ReplyState.PENDING
        assert not {pending, cancelled} & set(store.scan_expired(limit=1000))

    def test_scanning_and_cleaning_keep_to_their_limit(self) -> None:
        store = self.store()
        ids = [new_id() for _ in range(3)]
        for id in ids:
            store.create(id, ttl=self.moment)
        self.elapse(self.moment)
        assert len(store.scan_expired(limit=2)) <= 2
        assert store.cleanup_expired(limit=1) <= 1

    def test_one_of_many_consumers_gets_the_value(self) -> None:
        store, id = self.made()
        store.resolve(id, "one")
        assert self.race([lambda: store.consume(id) is not None] * 8) == 1

    def test_one_of_many_settlements_counts(self) -> None:
        store, id = self.made()
        calls = [lambda: store.resolve(id, 1), lambda: store.cancel(id)] * 3
        assert self.race(calls) == 1
        assert store.get(id).state in (ReplyState.RESOLVED, ReplyState.CANCELLED)

    def test_one_of_many_creations_counts(self) -> None:
        store, id = self.store(), new_id()
        assert self.race([lambda: store.create(id, ttl=60)] * 6) == 1

    def test_bad_input(self) -> None:
        store = self.store()
        for ttl in (0, -1, float("nan"), float("inf"), "5", None, True, 10.0**12):
            with pytest.raises(InvalidParameterError, match="ttl"):
                store.create(new_id(), ttl=ttl)
        for limit in (0, -1, 1.5, "5", None, True, 10**9):
            with pytest.raises(InvalidParameterError, match="limit"):
                store.scan_expired(limit=limit)
            with pytest.raises(InvalidParameterError, match="limit"):
                store.cleanup_expired(limit=limit)

    def race(self, calls: list[Any]) -> int:
        """Run all calls at once; return how many returned true."""
        ready = threading.Barrier(len(calls))

        def call(one: Any) -> bool:
            ready.wait(DEADLINE)
            return bool(one())

        futures = [background(call, one) for one in calls]
        return sum(future.result(DEADLINE) for future in futures)
