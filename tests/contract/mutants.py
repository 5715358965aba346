"""In-memory stores with one thing broken on purpose; the contract must notice each of them."""

from collections.abc import Sequence
from typing import Any

from weakincentives.runtime.mailbox.memory.store import DELAYED, PENDING, Entry, InMemoryStore
from weakincentives.runtime.mailbox.seam.store import (
    GivingBack,
    Leased,
    Leases,
    Outgoing,
    QueueStats,
)


class HandleNotCompared(InMemoryStore):
    """Any handle of the message will do."""

    def _of_id(self, handle: str) -> str:
        id = handle.rpartition(".")[0]
        return next((held for held, e in self._leased.items() if e.id == id), handle)

    def acknowledge_now(self, handles: Sequence[str]) -> Sequence[bool]:
        return super().acknowledge_now([self._of_id(handle) for handle in handles])

    async def release(
        self, handles: Sequence[str], delay: float, how: GivingBack = "failed"
    ) -> Sequence[bool]:
        return await super().release([self._of_id(handle) for handle in handles], delay, how)


class StaleExtendAccepted(InMemoryStore):
    """Only extending forgets to compare the handle."""

    async def extend(self, handles: Sequence[str], seconds: float) -> Sequence[bool]:
        ids = [handle.rpartition(".")[0] for handle in handles]
        current = [next((h for h, e in self._leased.items() if e.id == id), "") for id in ids]
        return await super().extend(current, seconds)


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

    def _release(self, handle: str, delay: float, now: float, how: GivingBack) -> bool:
        return super()._acknowledge(handle, now)


class CountNotRaised(InMemoryStore):
    """Every delivery says that it is the first."""

    def _lease(self, entry: Entry, serial: int, until: float, wall: float) -> Leased:
        return super()._lease(entry, serial, until, wall)._replace(delivery_count=1)


class NackNotCounted(InMemoryStore):
    """Nacks look like crashes."""

    def _lease(self, entry: Entry, serial: int, until: float, wall: float) -> Leased:
        return super()._lease(entry, serial, until, wall)._replace(nack_count=0)


class FirstReceiveForgotten(InMemoryStore):
    """Each delivery says that it was the first to receive the message."""

    def _lease(self, entry: Entry, serial: int, until: float, wall: float) -> Leased:
        return super()._lease(entry, serial, until, wall)._replace(first_received_at=until)


class DeleteKeepsIds(InMemoryStore):
    """What was sent before the queue was deleted is still known."""

    async def delete(self, force: bool = False) -> bool:
        known = self._known_ids
        deleted = await super().delete(force)
        self._known_ids = known
        return deleted


class DeleteNeedsNoForce(InMemoryStore):
    """A queue goes with its messages."""

    async def delete(self, force: bool = False) -> bool:
        return await super().delete(force=True)


class DelayIgnored(InMemoryStore):
    """A delayed message is visible at once."""

    def put_now(self, messages: Sequence[Outgoing]) -> None:
        super().put_now([message._replace(delay=0.0) for message in messages])


class NackLosesDelay(InMemoryStore):
    """A message nacked with a delay is visible at once."""

    def _release(self, handle: str, delay: float, now: float, how: GivingBack) -> bool:
        return super()._release(handle, 0.0, now, how)


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

    def _release(self, handle: str, delay: float, now: float, how: GivingBack) -> bool:
        done = super()._release(handle, delay, now, how)
        if done and delay == 0:
            self._pending.rotate(1)
        return done


class UndoneCounts(InMemoryStore):
    """What was not run counts as a failure."""

    def _undo(self, handle: str, delay: float, now: float) -> bool:
        return super()._release(handle, delay, now, "failed")


class UndoneLosesDelay(InMemoryStore):
    """What is undone with a delay is visible at once."""

    def _undo(self, handle: str, delay: float, now: float) -> bool:
        return super()._undo(handle, 0.0, now)


class UndoneGoesToTheBack(InMemoryStore):
    """What was not run has to wait its turn anew."""

    def _undo(self, handle: str, delay: float, now: float) -> bool:
        done = super()._undo(handle, delay, now)
        if done and delay == 0:
            self._pending.rotate(-1)
        return done


class UndoneForgetsTheNacks(InMemoryStore):
    """What was not run begins anew."""

    def _undo(self, handle: str, delay: float, now: float) -> bool:
        entry = self._leased.get(handle)
        if entry is not None:
            entry.deliveries, entry.nacks = 1, 0
        return super()._undo(handle, delay, now)


class PutOffNotCounted(InMemoryStore):
    """What was put off looks like a failure."""

    def _release(self, handle: str, delay: float, now: float, how: GivingBack) -> bool:
        return super()._release(handle, delay, now, "failed")


class PurgeLeavesLeased(InMemoryStore):
    """Messages in flight survive a purge."""

    async def purge(self) -> int:
        kept = dict(self._leased)
        due = list(self._due)
        count = await super().purge()
        self._leased.update(kept)
        self._entries.update({entry.id: entry for entry in kept.values()})
        self._due.extend(due)
        return count - len(kept)


class PurgeForgetsDelayed(InMemoryStore):
    """A delayed message comes back after a purge."""

    async def purge(self) -> int:
        due = [item for item in self._due if item[2].state == DELAYED]
        count = await super().purge()
        self._due.extend(due)
        self._entries.update({item[2].id: item[2] for item in due})
        return count


class PurgeKeepsIds(InMemoryStore):
    """What is sent again after a purge is taken for a repeat."""

    async def purge(self) -> int:
        known = list(self._known_ids.items())
        count = await super().purge()
        self._known_ids.update(known)
        return count


class SequelsForgotten(InMemoryStore):
    """The id of an answer is forgotten after five minutes, although its message is not done."""

    def put_now(self, messages: Sequence[Outgoing]) -> None:
        super().put_now([message._replace(remember=300.0) for message in messages])


class OneTooMany(InMemoryStore):
    """One message more than ``max_size`` fits."""

    def __init__(self, name: str, *, max_size: int | None = None, **options: Any) -> None:
        super().__init__(name, max_size=None if max_size is None else max_size + 1, **options)


class OnlyPendingCounts(InMemoryStore):
    """``max_size`` does not count what is leased."""

    def put_now(self, messages: Sequence[Outgoing]) -> None:
        limit = self._max_size
        if limit is not None:
            self._max_size = limit + len(self._leased)
        try:
            super().put_now(messages)
        finally:
            self._max_size = limit


class IdsForgotten(InMemoryStore):
    """A repeated id is a new message as soon as the first one is done."""

    def put_now(self, messages: Sequence[Outgoing]) -> None:
        self._known_ids.clear()
        super().put_now(messages)


class IdsNeverForgotten(InMemoryStore):
    """An id can never be used again."""

    def _unknown(self, messages: Sequence[Outgoing], now: float) -> list[Outgoing]:
        return super()._unknown(messages, 0.0)


class HalfABatch(InMemoryStore):
    """A batch that does not fit is sent as far as it does."""

    def put_now(self, messages: Sequence[Outgoing]) -> None:
        for message in messages:
            super().put_now([message])


class HandleReused(InMemoryStore):
    """The handle is the message's id."""

    def _lease(self, entry: Entry, serial: int, until: float, wall: float) -> Leased:
        leased = super()._lease(entry, serial, until, wall)
        self._leased[entry.id] = self._leased.pop(leased.handle)
        entry.handle = entry.id
        return leased._replace(handle=entry.id)


class RetentionIgnored(InMemoryStore):
    """Old messages are kept."""

    def __init__(self, name: str, *, retention: float | None = None, **options: Any) -> None:
        super().__init__(name, **options)


class SilentSend(InMemoryStore):
    """Nobody is woken by a message; those who wait look again when their time is nearly over."""

    look_interval = 16.0

    def __init__(self, name: str, **options: Any) -> None:
        super().__init__(name, **options)
        self.look_interval = 16.0
        self.bell.ring = lambda times=1: None  # type: ignore[method-assign]


class DeliveredTwice(InMemoryStore):
    """A leased message stays visible."""

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        leases = super().lease_now(count, seconds, acknowledge=acknowledge, ids=ids)
        for leased in leases.messages[:1]:
            entry = self._leased.pop(leased.handle)
            entry.state = PENDING
            self._pending.append(entry)
        return leases


class AcknowledgementForgotten(InMemoryStore):
    """Settling while receiving says yes and does nothing."""

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        return (
            super()
            .lease_now(count, seconds, ids=ids)
            ._replace(acknowledged=[True] * len(acknowledge))
        )


class LeasedNotCounted(InMemoryStore):
    """Statistics leave out what is in flight."""

    async def stats(self) -> QueueStats:
        return (await super().stats())._replace(in_flight=0)


MUTANTS: dict[str, type[InMemoryStore]] = {
    mutant.__name__: mutant
    for mutant in list(globals().values())
    if isinstance(mutant, type)
    and issubclass(mutant, InMemoryStore)
    and mutant is not InMemoryStore
}

# The test that must fail on each broken store, and must pass on the unbroken one.
CAUGHT_BY = {
    "AcknowledgementForgotten": "test_exchange_acknowledges_and_receives",
    "CountNotRaised": "test_counts_add_up",
    "DeleteKeepsIds": "test_the_ids_are_forgotten",
    "DeleteNeedsNoForce": "test_a_queue_with_messages_is_not_deleted",
    "DelayIgnored": "test_a_delayed_message_is_hidden_until_it_is_due",
    "DeliveredTwice": "test_what_is_leased_is_hidden",
    "DuplicatePromotion": "test_a_stale_handle_cannot_harm_the_new_holder",
    "ExpiryNotChecked": "test_an_ended_lease_is_refused_although_nobody_received_it",
    "FirstReceiveForgotten": "test_an_abandoned_message_goes_to_the_back",
    "HalfABatch": "test_a_batch_that_does_not_fit_is_not_sent_at_all",
    "HandleNotCompared": "test_a_stale_handle_cannot_harm_the_new_holder",
    "HandleReused": "test_a_stale_handle_cannot_harm_the_new_holder",
    "IdsForgotten": "test_a_repeated_id_is_the_same_message_after_the_acknowledgement",
    "IdsNeverForgotten": "test_an_id_is_forgotten_after_five_minutes",
    "LastInFirstOut": "test_first_deliveries_come_in_order",
    "LeasedNotCounted": "test_stats_tell_the_states_apart",
    "NackGoesToTheFront": "test_a_nacked_message_goes_to_the_back",
    "NackLosesDelay": "test_a_nack_with_a_delay_hides_the_message",
    "NackLosesMessage": "test_nack_gives_back_at_once",
    "NackNotCounted": "test_counts_add_up",
    "OneTooMany": "test_max_size_counts_pending_leased_and_delayed",
    "OnlyPendingCounts": "test_max_size_counts_pending_leased_and_delayed",
    "PurgeForgetsDelayed": "test_purge_removes_everything",
    "PurgeKeepsIds": "test_purge_forgets_the_ids",
    "PurgeLeavesLeased": "test_purge_kills_the_handles_and_leaves_no_ghosts",
    "PutOffNotCounted": "test_put_off_is_counted_apart",
    "RedeliveryLost": "test_everything_that_was_abandoned_comes_back",
    "RetentionIgnored": "test_messages_older_than_the_retention_are_dropped",
    "SequelsForgotten": "test_the_id_of_a_sequel_is_remembered_until_its_message_is_done",
    "SilentSend": "test_a_send_wakes_a_long_poll",
    "StaleExtendAccepted": "test_a_stale_handle_cannot_harm_the_new_holder",
    "UndoneCounts": "test_undone_counts_nothing",
    "UndoneForgetsTheNacks": "test_undone_keeps_what_was_counted_before",
    "UndoneGoesToTheBack": "test_undone_messages_return_to_their_place",
    "UndoneLosesDelay": "test_a_delay_holds_however_the_message_is_given_back",
}
