"""Tests of what operators see and do: who serves the queues, and pausing queues."""

import time
from typing import Any

from .driver import background
from .harness import LONG, Harness, unique_name

__all__ = ["Operating"]


class Operating(Harness):
    """Workers are listed while they say so, and nothing is received from a paused queue."""

    def worker_table(self) -> Any:
        """Return the table of workers, or skip the test."""
        box = self.mailbox()
        self.needs(box, "lists_workers")
        return box.raw.store.worker_table

    def listed(self, table: Any, *mine: bytes) -> list[bytes]:
        """Return which of these entries are listed; others may share the table."""
        return [row.entry for row in self.driver.call(table.rows) if row.entry in mine]

    def test_a_worker_is_listed_until_it_is_removed(self) -> None:
        table, id = self.worker_table(), unique_name()
        first, second = f"{id} one".encode(), f"{id} two".encode() + b"\n|\x00\xff"
        self.driver.call(table.write, id, first, LONG)
        assert self.listed(table, first, second) == [first]
        self.driver.call(table.write, id, second, LONG)
        self.driver.call(table.write, unique_name(), first, LONG)
        assert sorted(self.listed(table, first, second)) == [first, second]
        self.driver.call(table.remove, id)
        self.driver.call(table.remove, id)
        assert self.listed(table, first, second) == [first]

    def test_a_worker_that_says_no_more_is_forgotten(self) -> None:
        table, entry, other = self.worker_table(), unique_name().encode(), unique_name().encode()
        self.driver.call(table.write, unique_name(), entry, self.moment)
        self.driver.call(table.write, unique_name(), other, LONG)
        self.elapse(self.moment)
        assert self.listed(table, entry) == []
        (row,) = [row for row in self.driver.call(table.rows) if row.entry == other]
        assert self.moment <= row.age < LONG

    def test_tables_of_one_backend_are_one(self) -> None:
        box = self.mailbox()
        self.needs(box, "lists_workers")
        entry = unique_name().encode()
        self.driver.call(box.raw.store.worker_table.write, unique_name(), entry, LONG)
        assert self.listed(self.again(box).raw.store.worker_table, entry) == [entry]

    def pausable_box(self) -> Any:
        """Return a mailbox whose queue can be paused, or skip the test."""
        box = self.mailbox()
        self.needs(box, "pauses")
        return box

    def pause(self, box: Any, note: bytes = b"because") -> None:
        """Pause the queue of a mailbox."""
        self.driver.call(box.raw.store.pause_table.pause, box.name, note)

    def resume(self, box: Any) -> bool:
        """Resume the queue of a mailbox."""
        return bool(self.driver.call(box.raw.store.pause_table.resume, box.name))

    def note_of(self, box: Any) -> bytes | None:
        """Return the note of the queue of a mailbox, None if it is not paused."""
        return dict(self.driver.call(box.raw.store.pause_table.notes)).get(box.name)

    def test_nothing_is_received_from_a_paused_queue(self) -> None:
        box, other = self.pausable_box(), self.mailbox()
        self.fill(box, 1, 2)
        other.send("elsewhere")
        self.pause(box)
        box.send(3)
        assert box.receive(max_messages=10) == []
        assert self.again(box).receive(wait_time_seconds=self.moment) == []
        assert box.stats().pending == 3
        assert self.drain(other) == ["elsewhere"]
        assert self.resume(box) is True
        assert self.drain(box) == [1, 2, 3]

    def test_what_was_received_before_a_pause_is_settled_as_usual(self) -> None:
        box = self.pausable_box()
        self.fill(box, 1, 2, 3, 4, 5)
        done, again, held, late, _ = self.take(box, 5)
        self.pause(box)
        assert done.acknowledge() is True
        assert again.nack() is True
        assert held.extend_visibility(LONG) is True
        assert box.exchange([late]) == []
        assert late.is_finalized
        stats = box.stats()
        assert (stats.pending, stats.in_flight, stats.paused) == (1, 2, True)
        self.resume(box)
        assert self.drain(box) == [2]
        assert box.stats().paused is False

    def test_a_lease_that_ends_and_a_delay_that_is_over_wait_too(self) -> None:
        box = self.pausable_box()
        box.send("leased")
        self.take_one(box, lease=self.moment)
        box.send("delayed", delay_seconds=self.moment)
        self.pause(box)
        self.elapse(self.moment)
        assert box.receive(max_messages=10) == []
        assert box.stats().pending == 2
        self.resume(box)
        assert sorted(self.drain(box)) == ["delayed", "leased"]

    def test_a_resumed_queue_wakes_its_consumers(self) -> None:
        box = self.pausable_box()
        box.send("job")
        self.pause(box)
        waiting = background(
            self.again(box).receive, wait_time_seconds=min(20, box.limits.max_wait)
        )
        time.sleep(self.moment)  # a consumer that was not waiting yet is served all the same
        assert not waiting.done()
        self.resume(box)
        (message,) = waiting.result(self.patience)
        assert message.body == "job"

    def test_paused_queues_are_listed_until_they_are_resumed(self) -> None:
        box = self.pausable_box()
        assert self.note_of(box) is None
        assert self.resume(box) is False
        self.pause(box, b"first")
        self.pause(box, b"\x00 second")
        assert self.note_of(self.again(box)) == b"\x00 second"
        box.purge()
        assert self.note_of(box) == b"\x00 second"
        assert self.resume(box) is True
        assert self.resume(box) is False
        assert self.note_of(box) is None

    def test_what_is_asked_for_by_its_id_is_leased_all_the_same(self) -> None:
        box = self.pausable_box()
        self.needs(box, "peeks")
        first, _ = self.fill(box, 1, 2)
        self.pause(box)
        leases = self.driver.call(_leased_by_id, box.raw.store, first)
        assert [leased.id for leased in leases.messages] == [first]


async def _leased_by_id(store: Any, id: str) -> Any:
    return await store.lease(1, LONG, ids=[id])
