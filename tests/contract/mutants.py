"""In-memory stores with one thing broken on purpose; the contract must notice each of them."""

from collections.abc import Sequence
from typing import Any

from weakincentives.runtime.mailbox.memory_store import DELAYED, PENDING, Entry, InMemoryStore
from weakincentives.runtime.mailbox.store import Leased, Leases, Outgoing, QueueStats


class HandleNotCompared(InMemoryStore):
    """Any handle of the message will do."""

    def _of_id(self, handle: str) -> str:
        id = handle.rpartition(".")[0]
        return next((held for held, e in self._leased.items() if e.id == id), handle)

    def acknowledge(self, handles: Sequence[str]) -> Sequence[bool]:
        return super().acknowledge([self._of_id(handle) for handle in handles])

    def release(self, handles: Sequence[str], delay: float) -> Sequence[bool]:
        return super().release([self._of_id(handle) for handle in handles], delay)


class StaleExtendAccepted(InMemoryStore):
    """Only extending forgets to compare the handle."""

    def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        ids = [handle.rpartition(".")[0] for handle in handles]
        current = [next((h for h, e in self._leased.items() if e.id == id), "") for id in ids]
        return super().extend(current, seconds)


class ExpiryNotChecked(InMemoryStore):
    """A lease that ran out still holds until somebody else receives the message."""

    def _held(self, handle: str, now: float) -> Entry | None:
        return self._leased.get(handle)

    def _acknowledge(self, handle: str, now: float) -> bool:
        return super()._acknowledge(handle, -1.0)


class RedeliveryLost(InMemoryStore):
    """What an abandoned lease held never comes back."""

    def _promote(self, now: float) -> int:
        lost = [entry for entry in self._leased.values() if entry.due <= now]
        expired = super()._promote(now)
        for entry in lost:
            self._pending.remove(entry)
            del self._entries[entry.id]
        return expired


class NackLosesMessage(InMemoryStore):
    """What was given back is gone."""

    def _release(self, handle: str, delay: float, now: float) -> bool:
        return super()._acknowledge(handle, now)


class CountNotRaised(InMemoryStore):
    """Every delivery says that it is the first."""

    def _lease(self, entry: Entry, until: float, wall: float) -> Leased:
        return super()._lease(entry, until, wall)._replace(delivery_count=1)


class NackNotCounted(InMemoryStore):
    """Nacks look like crashes."""

    def _lease(self, entry: Entry, until: float, wall: float) -> Leased:
        return super()._lease(entry, until, wall)._replace(nack_count=0)


class FirstReceiveForgotten(InMemoryStore):
    """Each delivery says that it was the first to receive the message."""

    def _lease(self, entry: Entry, until: float, wall: float) -> Leased:
        return super()._lease(entry, until, wall)._replace(first_received_at=until)


class DelayIgnored(InMemoryStore):
    """A delayed message is visible at once."""

    def put(self, messages: Sequence[Outgoing]) -> None:
        super().put([message._replace(delay=0.0) for message in messages])


class NackLosesDelay(InMemoryStore):
    """A message nacked with a delay is visible at once."""

    def _release(self, handle: str, delay: float, now: float) -> bool:
        return super()._release(handle, 0.0, now)


class DuplicatePromotion(InMemoryStore):
    """Two reapers at once: what comes due is put into the queue twice."""

    def _promote(self, now: float) -> int:
        before = len(self._pending)
        expired = super()._promote(now)
        self._pending.extend(list(self._pending)[before:])
        return expired


class LastInFirstOut(InMemoryStore):
    """The youngest message is served first."""

    def _next(self, count: int, now: float) -> tuple[list[Entry], int]:
        self._pending.reverse()
        taken = super()._next(count, now)
        self._pending.reverse()
        return taken


class NackGoesToTheFront(InMemoryStore):
    """A poison message blocks the queue."""

    def _release(self, handle: str, delay: float, now: float) -> bool:
        done = super()._release(handle, delay, now)
        if done and delay == 0:
            self._pending.rotate(1)
        return done


class PurgeLeavesLeased(InMemoryStore):
    """Messages in flight survive a purge."""

    def purge(self) -> int:
        kept = dict(self._leased)
        due = list(self._due)
        count = super().purge()
        self._leased.update(kept)
        self._entries.update({entry.id: entry for entry in kept.values()})
        self._due.extend(due)
        return count - len(kept)


class PurgeForgetsDelayed(InMemoryStore):
    """A delayed message comes back after a purge."""

    def purge(self) -> int:
        due = [item for item in self._due if item[2].state == DELAYED]
        count = super().purge()
        self._due.extend(due)
        self._entries.update({item[2].id: item[2] for item in due})
        return count


class OneTooMany(InMemoryStore):
    """One message more than ``max_size`` fits."""

    def __init__(self, name: str, *, max_size: int | None = None, **options: Any) -> None:
        super().__init__(name, max_size=None if max_size is None else max_size + 1, **options)


class OnlyPendingCounts(InMemoryStore):
    """``max_size`` does not count what is leased."""

    def put(self, messages: Sequence[Outgoing]) -> None:
        limit = self._max_size
        if limit is not None:
            self._max_size = limit + len(self._leased)
        try:
            super().put(messages)
        finally:
            self._max_size = limit


class IdsForgotten(InMemoryStore):
    """A repeated id is a new message as soon as the first one is done."""

    def put(self, messages: Sequence[Outgoing]) -> None:
        self._known_ids.clear()
        super().put(messages)


class IdsNeverForgotten(InMemoryStore):
    """An id can never be used again."""

    def _unknown(self, messages: Sequence[Outgoing], now: float) -> list[Outgoing]:
        return super()._unknown(messages, 0.0)


class HalfABatch(InMemoryStore):
    """A batch that does not fit is sent as far as it does."""

    def put(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            super().put([message])


class HandleReused(InMemoryStore):
    """The handle is the message's id."""

    def _lease(self, entry: Entry, until: float, wall: float) -> Leased:
        leased = super()._lease(entry, until, wall)
        self._leased[entry.id] = self._leased.pop(leased.handle)
        entry.handle = entry.id
        return leased._replace(handle=entry.id)


class RetentionIgnored(InMemoryStore):
    """Old messages are kept."""

    def __init__(self, name: str, *, retention: float | None = None, **options: Any) -> None:
        super().__init__(name, **options)


class SilentSend(InMemoryStore):
    """Nobody is woken by a message; those who wait look again after ten seconds."""

    look_interval = 10.0

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.look_interval = 10.0
        self.bell.ring = lambda times=1: None  # type: ignore[method-assign]


class DeliveredTwice(InMemoryStore):
    """A leased message stays visible."""

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        leases = super().lease(count, seconds, acknowledge=acknowledge, ids=ids)
        for leased in leases.messages[:1]:
            entry = self._leased.pop(leased.handle)
            entry.state = PENDING
            self._pending.append(entry)
        return leases


class AcknowledgementForgotten(InMemoryStore):
    """Settling while receiving says yes and does nothing."""

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        return (
            super().lease(count, seconds, ids=ids)._replace(acknowledged=[True] * len(acknowledge))
        )


class LeasedNotCounted(InMemoryStore):
    """Statistics leave out what is in flight."""

    def stats(self) -> QueueStats:
        return super().stats()._replace(in_flight=0)


MUTANTS: dict[str, type[InMemoryStore]] = {
    mutant.__name__: mutant
    for mutant in list(globals().values())
    if isinstance(mutant, type)
    and issubclass(mutant, InMemoryStore)
    and mutant is not InMemoryStore
}
