"""Tests of what operators see and do: who serves the queues."""

from typing import Any

from .harness import LONG, Harness, unique_name

__all__ = ["Operating"]


class Operating(Harness):
    """Workers are listed for as long as they say so."""

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
