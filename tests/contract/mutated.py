"""The contract on the store that the environment names. Run by test_mutants, not collected."""

import os
from functools import cached_property
from typing import Any

from tests.contract.mutants import MUTANTS
from tests.contract.shelf import Shelf
from weakincentives.contrib.mailbox.contract import MailboxContract
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox.memory_store import InMemoryStore


class TestMutated(MailboxContract):
    faces = ("sync",)
    fake_clock = True
    moment = 1
    patience = 1.0
    mutant = os.environ.get("MUTANT", "")

    @cached_property
    def shelf(self) -> Shelf:
        return Shelf(MUTANTS.get(self.mutant, InMemoryStore), clock=FakeClock())

    def make_mailbox(self, name: str, **options: Any) -> Any:
        return self.shelf.mailbox(name, **options)

    def elapse(self, seconds: float) -> None:
        self.shelf.advance(seconds)
