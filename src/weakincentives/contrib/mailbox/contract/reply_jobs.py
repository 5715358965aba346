"""Tests of what a reply table knows of the job: failures, starts, replays and parts."""

import time
from datetime import timedelta
from typing import Any

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.envelope import Envelope, JsonSealer, ObjectSealer, Sealer
from weakincentives.runtime.mailbox.replies.failure import Failed
from weakincentives.runtime.mailbox.replies.store import StoredReplies
from weakincentives.runtime.mailbox.seam.reply_table import MOST_PARTS, JobStart, ReplyState
from weakincentives.serde import Codec

from .driver import DEADLINE, background
from .harness import ContractBase

__all__ = ["ReplyJobs"]

OWNER, OTHER = "orders/1", "orders/2"
FIRST = JobStart("handle-1", "host:1", 1)
SECOND = JobStart("handle-2", "host:2", 2)


class ReplyJobs(ContractBase):
    """A table keeps what a caller wants to know of its job, each change in one step."""

    def store(self) -> Any:
        """Make a reply store; the suite that this is part of says how."""
        raise NotImplementedError

    def table(self, ttl: float = 60.0, keep: float = 0.0) -> tuple[Any, str]:
        """Return a table with one pending reply of ``orders/1``, and the reply's id."""
        table, id = self.store().raw._table, new_id()
        assert self.step(table.create, id, ttl, OWNER, keep) is True
        return table, id

    def step(self, step: Any, *arguments: Any, **options: Any) -> Any:
        """Take a step of the table."""

        async def taken() -> Any:
            return await step(*arguments, **options)

        return self.driver.call(taken)

    def sealer(self, table: Any) -> Sealer:
        """Return what makes the payloads of this table."""
        return ObjectSealer() if table.keeps_objects else JsonSealer(Codec(), 2**20)

    def payload(self, table: Any, value: Any) -> Any:
        """Return a value as this table keeps it."""
        return self.sealer(table).seal(Envelope(value))

    def values(self, table: Any, rows: Any) -> list[Any]:
        """Return the values of parts."""
        sealer = self.sealer(table)
        return [sealer.body(sealer.open(row.payload)) for row in rows]

    def state(self, table: Any, id: str) -> ReplyState | None:
        """Return the state of a reply, None if there is none."""
        row = self.step(table.get, id)
        return None if row is None else row.state

    def test_a_reply_fails_once_and_for_its_owner(self) -> None:
        table, id = self.table()
        failure = self.payload(table, "why")
        assert self.step(table.resolve, id, failure, OTHER, failed=True) is False
        assert self.step(table.resolve, id, failure, OWNER, failed=True) is True
        assert self.step(table.resolve, id, failure, OWNER) is False
        assert self.step(table.cancel, id) is False
        row = self.step(table.get, id)
        assert row.state == ReplyState.FAILED
        assert row.resolved_at is not None
        assert self.values(table, [row]) == ["why"]
        assert self.step(table.consume, id) is None

    def test_a_store_shows_a_failure_with_and_without_a_value(self) -> None:
        store = self.store()
        table = store.raw._table
        for failed, value in ((Failed("E", "ref"), None), (Failed("E", "ref", value=7), 7)):
            id = new_id()
            self.step(table.create, id, 60.0, OWNER)
            payload = self.sealer(table).seal(failed.envelope())
            self.step(table.resolve, id, payload, OWNER, failed=True)
            store_of_numbers: StoredReplies[int] = StoredReplies(table, int)
            entry = store_of_numbers._entry(self.step(table.get, id))
            assert entry is not None
            assert (entry.state, entry.value) == (ReplyState.FAILED, value)

    def test_a_failed_reply_opens_again_for_a_replay(self) -> None:
        table, id = self.table(ttl=5.0, keep=100.0)
        self.step(table.start, id, OWNER, FIRST)
        self.step(table.resolve, id, self.payload(table, "why"), OWNER, failed=True)
        assert self.step(table.reopen, id, 50.0, OTHER, 70.0) is True
        row = self.step(table.get, id)
        assert (row.state, row.owner, row.start) == (ReplyState.PENDING, OTHER, None)
        assert (row.ttl, row.keep) == (50.0, 70.0)
        assert 45 < row.expires_at - row.created_at < 55
        assert self.step(table.resolve, id, self.payload(table, 1), OWNER) is False
        assert self.step(table.resolve, id, self.payload(table, 2), OTHER) is True
        assert self.values(table, [self.step(table.get, id)]) == [2]

    def test_a_pending_reply_is_prolonged_for_its_owner(self) -> None:
        table, id = self.table()
        for keep in (0.0, 100.0):
            table, id = self.table(ttl=50.0, keep=keep)
            before = self.step(table.get, id)
            assert self.step(table.prolong, id, 500.0, OTHER) is False
            assert self.step(table.prolong, id, 500.0, OWNER) is True
            row = self.step(table.get, id)
            assert abs(row.expires_at - before.expires_at - 500) < 1
            assert (row.state, row.ttl, row.keep) == (ReplyState.PENDING, 50.0, keep)
            self.step(table.resolve, id, self.payload(table, 1), OWNER)
            assert self.step(table.prolong, id, 500.0, OWNER) is False
        assert self.step(table.prolong, new_id(), 500.0, OWNER) is False

    def test_a_repeated_replay_changes_nothing_more(self) -> None:
        table, id = self.table()
        self.step(table.resolve, id, self.payload(table, "why"), OWNER, failed=True)
        for _ in range(2):
            assert self.step(table.reopen, id, 50.0, OTHER) is True
        assert self.state(table, id) == ReplyState.PENDING

    def test_what_is_pending_or_gone_opens_for_a_replay_too(self) -> None:
        table, id = self.table()
        assert self.step(table.reopen, id, 50.0, OTHER) is True
        assert self.step(table.get, id).owner == OTHER
        gone = new_id()
        assert self.step(table.reopen, gone, 50.0, OTHER, 9.0) is True
        row = self.step(table.get, gone)
        assert (row.state, row.owner, row.keep) == (ReplyState.PENDING, OTHER, 9.0)

    def test_an_expired_reply_opens_for_a_replay(self) -> None:
        table, id = self.table(ttl=self.moment)
        self.elapse(self.moment)
        assert self.step(table.reopen, id, 50.0, OTHER) is True
        assert self.state(table, id) == ReplyState.PENDING

    def test_a_value_or_a_cancel_is_final(self) -> None:
        table, resolved = self.table()
        self.step(table.resolve, resolved, self.payload(table, 1), OWNER)
        assert self.step(table.reopen, resolved, 50.0, OTHER) is False
        assert self.state(table, resolved) == ReplyState.RESOLVED
        cancelled = new_id()
        self.step(table.create, cancelled, 60.0, OWNER)
        self.step(table.cancel, cancelled)
        assert self.step(table.reopen, cancelled, 50.0, OTHER) is False
        assert self.state(table, cancelled) == ReplyState.CANCELLED

    def test_a_start_is_recorded(self) -> None:
        table, id = self.table()
        assert self.step(table.get, id).start is None
        row = self.step(table.start, id, OWNER, FIRST)
        assert row.start == self.step(table.get, id).start
        assert row.state == ReplyState.PENDING
        assert row.start[:3] == FIRST[:3]
        assert row.start.series == 1
        assert abs(row.start.at - row.created_at) < DEADLINE
        again = self.step(table.start, id, OWNER, SECOND).start
        assert (again[:3], again.series) == (SECOND[:3], 2)

    def test_an_older_or_a_strange_start_is_not_recorded(self) -> None:
        table, id = self.table()
        self.step(table.start, id, OWNER, SECOND)
        assert self.step(table.start, id, OWNER, FIRST).start.handle == "handle-2"
        strange = JobStart("handle-9", "host:9", 9)
        assert self.step(table.start, id, OTHER, strange).start.handle == "handle-2"
        assert self.step(table.start, new_id(), OWNER, FIRST) is None
        self.step(table.cancel, id)
        row = self.step(table.start, id, OWNER, strange)
        assert (row.state, row.start.handle) == (ReplyState.CANCELLED, "handle-2")

    def test_the_series_goes_on_after_a_replay(self) -> None:
        table, id = self.table()
        self.step(table.start, id, OWNER, SECOND)
        self.step(table.resolve, id, self.payload(table, "why"), OWNER, failed=True)
        self.step(table.reopen, id, 50.0, OTHER)
        start = self.step(table.start, id, OTHER, JobStart("handle-3", "host:3", 1)).start
        assert (start.handle, start.deliveries, start.series) == ("handle-3", 1, 2)

    def test_parts_are_kept_in_order(self) -> None:
        table, id = self.table()
        self.step(table.start, id, OWNER, FIRST)
        emit, payload = table.emit, self.payload
        assert self.step(emit, id, OWNER, "handle-1", [payload(table, n) for n in (0, 1)]) is True
        assert self.step(emit, id, OWNER, "handle-1", [payload(table, 2)]) is True
        rows = self.step(table.parts, id, 0, 10)
        assert [row.number for row in rows] == [0, 1, 2]
        assert {row.series for row in rows} == {1}
        assert self.values(table, rows) == [0, 1, 2]
        assert self.values(table, self.step(table.parts, id, 1, 1)) == [1]
        assert list(self.step(table.parts, id, 3, 10)) == []
        assert self.step(table.get, id).parts == 3

    def test_parts_of_an_older_start_are_refused(self) -> None:
        table, id = self.table()
        part = [self.payload(table, "part")]
        assert self.step(table.emit, id, OWNER, "handle-1", part) is False
        self.step(table.start, id, OWNER, FIRST)
        assert self.step(table.emit, id, OWNER, "handle-1", part) is True
        self.step(table.start, id, OWNER, SECOND)
        assert self.step(table.emit, id, OWNER, "handle-1", part) is False
        assert self.step(table.emit, id, OWNER, "handle-2", part) is True
        rows = self.step(table.parts, id, 0, 10)
        assert [(row.number, row.series) for row in rows] == [(0, 1), (1, 2)]

    def test_no_parts_after_the_end(self) -> None:
        table, id = self.table()
        self.step(table.start, id, OWNER, FIRST)
        part = [self.payload(table, "part")]
        self.step(table.emit, id, OWNER, "handle-1", part)
        self.step(table.resolve, id, self.payload(table, 1), OWNER)
        assert self.step(table.emit, id, OWNER, "handle-1", part) is False
        assert len(self.step(table.parts, id, 0, 10)) == 1
        assert self.step(table.emit, new_id(), OWNER, "handle-1", part) is False

    def test_parts_go_with_their_reply(self) -> None:
        table, id = self.table()
        self.step(table.start, id, OWNER, FIRST)
        self.step(table.emit, id, OWNER, "handle-1", [self.payload(table, "part")])
        self.step(table.delete, id)
        assert list(self.step(table.parts, id, 0, 10)) == []
        self.step(table.create, id, 60.0, OWNER)
        assert list(self.step(table.parts, id, 0, 10)) == []
        assert self.step(table.get, id).parts == 0

    def test_the_oldest_parts_go_first(self) -> None:
        table, id = self.table()
        self.step(table.start, id, OWNER, FIRST)
        batch = [self.payload(table, "part")] * 500
        for _ in range(MOST_PARTS // 500 + 1):
            assert self.step(table.emit, id, OWNER, "handle-1", batch) is True
        emitted = MOST_PARTS + 500
        assert self.step(table.get, id).parts == emitted
        (oldest,) = self.step(table.parts, id, 0, 1)
        # A backend may drop a few more or less at a time.
        assert 0 < oldest.number <= emitted - MOST_PARTS + 1000
        (newest,) = self.step(table.parts, id, emitted - 1, 10)
        assert newest.number == emitted - 1

    def test_a_listener_waits_for_parts_and_for_the_end(self) -> None:
        table, id = self.table()
        self.step(table.start, id, OWNER, FIRST)

        def listen(first: int) -> Any:
            in_loop = self.driver.face == "async"
            listener = table.listen(id, in_loop=in_loop)
            try:
                while True:  # it may look more often than it must
                    row, parts = self.step(listener.get_parts, first, DEADLINE / 2)
                    if parts or row.state != ReplyState.PENDING:
                        return row, parts
            finally:
                listener.close()

        waiting = background(listen, 0)
        self.step(table.emit, id, OWNER, "handle-1", [self.payload(table, "part")])
        row, rows = waiting.result(DEADLINE)
        assert (row.state, self.values(table, rows)) == (ReplyState.PENDING, ["part"])
        waiting = background(listen, 1)
        self.step(table.resolve, id, self.payload(table, 1), OWNER)
        row, rows = waiting.result(DEADLINE)
        assert (row.state, list(rows)) == (ReplyState.RESOLVED, [])

    def test_a_kept_reply_can_be_read_for_that_long(self) -> None:
        store = self.store()
        table = store.raw._table
        for settle in ("resolve", "fail", "cancel"):
            id = new_id()
            self.step(table.create, id, 30.0, OWNER, 1000.0)
            if settle == "cancel":
                assert self.step(table.cancel, id) is True
            else:
                value = self.payload(table, 1)
                assert self.step(table.resolve, id, value, OWNER, failed=settle == "fail") is True
            row = self.step(table.get, id)
            assert row.keep == 1000.0
            assert 990 < row.expires_at - row.created_at < 1000 + DEADLINE
            assert store.get(id).expires_at - store.get(id).created_at > timedelta(seconds=990)

    def test_a_cancel_has_its_time(self) -> None:
        table, id = self.table()
        self.elapse(self.moment)
        self.step(table.cancel, id)
        row = self.step(table.get, id)
        assert row.resolved_at is not None
        assert row.resolved_at - row.created_at >= self.moment / 2

    def _settled(self, listener: Any) -> ReplyState:
        """Return the state of a reply once it is no longer pending."""
        while True:
            row = self.step(listener.get, DEADLINE / 2)
            if row is None or row.state != ReplyState.PENDING:
                return ReplyState.EXPIRED if row is None else row.state

    def test_a_listener_notices_the_expiry(self) -> None:
        table, id = self.table(ttl=self.moment * 2)
        listener = table.listen(id, in_loop=self.driver.face == "async")
        started = time.monotonic()
        try:
            waiting = background(self._settled, listener)
            self.elapse(self.moment * 2)
            assert waiting.result(DEADLINE) == ReplyState.EXPIRED
        finally:
            listener.close()
        # Not at its next look in some seconds; ten times what it takes at most.
        assert time.monotonic() - started < DEADLINE / 2

    def test_a_kept_reply_that_expires_can_be_read(self) -> None:
        table, id = self.table(ttl=self.moment, keep=1000.0)
        self.elapse(self.moment)
        assert self.state(table, id) == ReplyState.EXPIRED
        self.step(table.cleanup_expired, 1000)
        assert self.state(table, id) == ReplyState.EXPIRED
        assert id not in self.step(table.scan_expired, 1000)
