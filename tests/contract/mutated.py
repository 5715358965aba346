"""The contract on each broken store and on the unbroken one; test_mutants runs it."""

from functools import cached_property
from typing import Any

from tests.contract.mutants import CAUGHT_BY, MUTANTS
from tests.contract.shelf import Shelf
from weakincentives.contrib.mailbox.contract import MailboxContract
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox.memory.store import InMemoryStore


class TestUnbroken(MailboxContract):
    faces = ("sync",)
    fake_clock = True
    moment = 1
    patience = 1.0
    store: type[InMemoryStore] = InMemoryStore

    @cached_property
    def shelf(self) -> Shelf:
        return Shelf(self.store, clock=FakeClock())

    def make_mailbox(self, name: str, **options: Any) -> Any:
        return self.shelf.mailbox(name, **options)

    def elapse(self, seconds: float) -> None:
        self.shelf.advance(seconds)


def breaking(store: type[InMemoryStore], test: str) -> type:
    """Return a class of one test: no other is wanted, and collecting all takes longer."""
    others = {name for name in dir(TestUnbroken) if name.startswith("test_")} - {test}
    return type("Broken", (TestUnbroken,), {**dict.fromkeys(others), "store": store})


for name, test in CAUGHT_BY.items():
    globals()[f"Test{name}"] = breaking(MUTANTS[name], test)
