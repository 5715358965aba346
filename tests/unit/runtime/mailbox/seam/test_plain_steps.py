"""A thread takes plain steps only where they are the same as those that an event loop awaits."""

from collections.abc import Sequence
from typing import Any

import pytest

from weakincentives.runtime.mailbox import InMemoryMailbox
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.seam.plain_steps import plain_steps
from weakincentives.runtime.mailbox.seam.store import Leases, Outgoing


class Ledger:
    """What went through the coroutines of a store."""

    def __init__(self) -> None:
        self.put: list[str] = []
        self.leased: list[str] = []
        self.acknowledged: list[str] = []


class Subclass(InMemoryStore):
    """A store of ours that somebody has changed where the seam says what a store does."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__("queue")
        self._ledger = ledger

    async def put(self, messages: Sequence[Outgoing]) -> None:
        await super().put(messages)
        self._ledger.put += [message.id for message in messages]

    async def lease(self, *arguments: Any, **options: Any) -> Leases:
        leases = await super().lease(*arguments, **options)
        self._ledger.leased += [message.id for message in leases.messages]
        return leases

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        self._ledger.acknowledged += handles
        return await super().acknowledge(handles)


class Wrapper:
    """The same around a store; for all the rest it stands back."""

    def __init__(self, ledger: Ledger) -> None:
        self._inner = InMemoryStore("queue")
        self._ledger = ledger

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def put(self, messages: Sequence[Outgoing]) -> None:
        await self._inner.put(messages)
        self._ledger.put += [message.id for message in messages]

    async def lease(self, *arguments: Any, **options: Any) -> Leases:
        leases = await self._inner.lease(*arguments, **options)
        self._ledger.leased += [message.id for message in leases.messages]
        return leases

    async def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        self._ledger.acknowledged += handles
        return await self._inner.acknowledge(handles)


@pytest.mark.parametrize("kind", [Subclass, Wrapper])
def test_a_thread_does_not_pass_by_a_step_that_somebody_has_changed(kind: Any) -> None:
    ledger = Ledger()
    box = InMemoryMailbox[int, None]("queue")
    box._use(kind(ledger))
    id = box.send(1)
    (message,) = box.receive()
    message.acknowledge()
    assert (ledger.put, ledger.leased) == ([id], [id])
    assert ledger.acknowledged == [message.receipt_handle]


def test_plain_steps_that_are_changed_are_taken_as_they_are() -> None:
    class Plain(InMemoryStore):
        def put_now(self, messages: Sequence[Outgoing]) -> None: ...

    class Both(InMemoryStore):
        def put_now(self, messages: Sequence[Outgoing]) -> None: ...

        async def put(self, messages: Sequence[Outgoing]) -> None: ...

    for store in (InMemoryStore("queue"), Plain("queue"), Both("queue")):
        assert plain_steps(store) is store
