"""Mailboxes in memory, and the typed face over each way in which a store can take its steps."""

from functools import cached_property
from typing import Any, ClassVar

from tests.contract.shelf import (
    AwaitedReplies,
    AwaitedStore,
    BlockingReplies,
    BlockingStore,
    FrugalStore,
    Shelf,
)
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox import InMemoryMailbox, InMemoryReplyStore
from weakincentives.runtime.mailbox.replies.store import StoredReplies


class Objects:
    """Bodies stay the objects that they are."""

    serialize: ClassVar[bool] = False

    def make_mailbox(self, name: str, **options: Any) -> InMemoryMailbox[Any, Any]:
        return InMemoryMailbox(name, serialize=self.serialize, **options)

    def open_again(self, mailbox: Any, **options: Any) -> InMemoryMailbox[Any, Any]:
        # Memory is not shared by name.
        return self.make_mailbox(mailbox.name, **options).on_queue_of(mailbox)

    def make_reply_store(self) -> Any:
        return InMemoryReplyStore()


class Serialized(Objects):
    """Bodies are objects that went through JSON; time is a fake."""

    serialize = True
    fake_clock = True
    moment = 1

    @cached_property
    def clock(self) -> FakeClock:
        return FakeClock()

    @cached_property
    def made(self) -> list[InMemoryMailbox[Any, Any]]:
        return []

    def make_mailbox(self, name: str, **options: Any) -> InMemoryMailbox[Any, Any]:
        self.made.append(super().make_mailbox(name, clock=self.clock, **options))
        return self.made[-1]

    def elapse(self, seconds: float) -> None:
        self.clock.advance(seconds)
        for box in self.made:
            box.store.bell.ring_all()
            box._reply_table.look_again()


class Bytes:
    """Payloads are bytes and names are resolved, as on a server; time is a fake."""

    fake_clock = True
    moment = 1

    @cached_property
    def shelf(self) -> Shelf:
        return Shelf(clock=FakeClock())

    def make_mailbox(self, name: str, **options: Any) -> Any:
        return self.shelf.mailbox(name, **options)

    def make_reply_store(self) -> Any:
        return StoredReplies(self.shelf.table)

    def elapse(self, seconds: float) -> None:
        self.shelf.advance(seconds)


class Blocking(Bytes):
    """Steps that an event loop must not take itself."""

    @cached_property
    def shelf(self) -> Shelf:
        return Shelf(BlockingStore, BlockingReplies, FakeClock())


class Awaited(Bytes):
    """Steps that are awaited: there is no blocking face."""

    faces = ("async",)

    @cached_property
    def shelf(self) -> Shelf:
        return Shelf(AwaitedStore, AwaitedReplies, FakeClock())


class Frugal(Bytes):
    """What a backend declares that it cannot do is refused or skipped, and the rest still holds."""

    @cached_property
    def shelf(self) -> Shelf:
        return Shelf(FrugalStore, clock=FakeClock())
