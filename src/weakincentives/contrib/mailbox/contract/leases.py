"""Tests of leases: when they end, and that handles are refused afterwards."""

import time
from typing import Any, get_args

from weakincentives.runtime.mailbox.seam.store import GivingBack

from .harness import LONG, Harness, refused

__all__ = ["Leasing"]


class Leasing(Harness):
    """A worker that lost its lease can do no harm."""

    def test_an_ended_lease_is_refused_although_nobody_received_it(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2, 3)
        acked, nacked, extended = self.take(box, 3, self.moment)
        self.elapse(self.moment)
        if box.capabilities.fenced:
            with refused():
                acked.acknowledge()
            with refused():
                nacked.nack()
            with refused():
                extended.extend_visibility(LONG)
        assert not acked.is_finalized
        again = self.take(box, 3)
        assert sorted(message.body for message in again) == [1, 2, 3]
        assert {message.delivery_count for message in again} == {2}
        if box.capabilities.nack_counts:
            assert {message.nack_count for message in again} == {0}

    def test_a_stale_handle_cannot_harm_the_new_holder(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        self.fill(box, 1, 2, 3)
        acked, nacked, extended = self.take(box, 3, self.moment)
        self.elapse(self.moment)
        holders = self.take(box, 3)
        with refused():
            acked.acknowledge()
        with refused():
            nacked.nack()
        with refused():
            extended.extend_visibility(LONG)
        assert box.receive() == []
        assert [message.acknowledge() for message in holders] == [True, True, True]

    def test_a_handle_that_was_nacked_is_dead(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        box.send(1)
        first = self.take_one(box)
        first.nack()
        holder = self.take_one(box)
        self.assert_dead(box, first.receipt_handle)
        assert box.receive() == []
        assert holder.acknowledge() is True

    def test_a_handle_matches_no_delayed_message(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        box.send(1)
        message = self.take_one(box)
        message.nack(visibility_timeout=LONG)
        self.assert_dead(box, message.receipt_handle)
        assert (box.stats().delayed, box.stats().total) == (1, 1)

    def test_a_handle_that_was_acknowledged_is_dead(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        box.send(1)
        message = self.take_one(box)
        message.acknowledge()
        self.assert_dead(box, message.receipt_handle)
        assert box.approximate_count() == 0

    def test_an_invented_handle_is_refused(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        sent = box.send(1)
        message = self.take_one(box)
        for handle in ("", "nonsense", sent, message.receipt_handle + "x"):
            self.assert_dead(box, handle)
        assert message.acknowledge() is True

    def assert_dead(self, box: Any, handle: str) -> None:
        """Check that the store itself refuses the handle; a Message would refuse earlier."""
        store, call = box.store, self.driver.call
        assert list(call(store.acknowledge, [handle])) == [False]
        for how in get_args(GivingBack):
            assert list(call(store.release, [handle], 0.0, how)) == [False]
        assert list(call(store.extend, [handle], 60.0)) == [False]

    def test_everything_that_was_abandoned_comes_back(self) -> None:
        box = self.mailbox()
        count = min(box.limits.max_batch, 1000)
        ids = set(box.send_batch(list(range(count))))
        assert {message.id for message in self.take(box, count, self.moment * 4)} == ids
        self.elapse(self.moment * 4)
        started = time.monotonic()
        again = self.take(box, count)
        assert time.monotonic() - started < 60
        assert {message.id for message in again} == ids
        if box.capabilities.fenced:
            assert box.acknowledge_batch(again) == [True] * count

    def test_the_longest_times_are_kept(self) -> None:
        box = self.mailbox()
        limits = box.limits
        box.send("leased")
        message = self.take_one(box, limits.max_visibility)
        if box.capabilities.delays:
            box.send("delayed", delay_seconds=limits.max_delay)
        assert message.extend_visibility(limits.max_visibility) is True
        assert box.receive() == []
        if box.capabilities.exact_counts:
            stats = box.stats()
            assert (stats.in_flight, stats.delayed) == (1, int(box.capabilities.delays))
        assert message.nack(visibility_timeout=limits.max_visibility) is True
        assert box.receive() == []

    def test_an_abandoned_message_goes_to_the_back(self) -> None:
        box = self.mailbox()
        self.needs(box, "ordered")
        self.fill(box, "abandoned", "b", "c")
        first = self.take_one(box, self.moment)
        self.elapse(self.moment)
        messages = [self.take_one(box) for _ in range(3)]
        assert [message.body for message in messages] == ["b", "c", "abandoned"]
        again = messages[-1]
        assert again.id == first.id
        assert again.receipt_handle != first.receipt_handle
        assert again.enqueued_at == first.enqueued_at
        assert again.first_received_at == first.first_received_at

    def test_extending_keeps_the_message(self) -> None:
        box = self.mailbox()
        box.send("long job")
        message = self.take_one(box, self.moment * 4)
        assert message.extend_visibility(LONG) is True
        self.elapse(self.moment * 4)
        assert box.receive() == []
        assert not message.is_finalized
        assert message.acknowledge() is True

    def test_an_extension_counts_from_now_and_may_shorten(self) -> None:
        box = self.mailbox()
        box.send("short job")
        message = self.take_one(box)
        assert message.extend_visibility(self.moment) is True
        self.elapse(self.moment)
        again = self.take_one(box)
        assert again.delivery_count == 2
        if box.capabilities.fenced:
            with refused():
                message.acknowledge()

    def test_a_lease_of_nothing_is_over_at_once(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        box.send(1)
        first = self.take_one(box, 0)
        with refused():
            first.acknowledge()
        assert self.take_one(box).delivery_count == 2

    def test_acknowledge_batch_tells_which_leases_had_ended(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        self.fill(box, *range(4))
        late = self.take(box, 2, self.moment)
        held = self.take(box, 2)
        self.elapse(self.moment)
        mixed = [late[0], held[0], late[1], held[1]]
        assert box.acknowledge_batch(mixed) == [False, True, False, True]
        assert [message.is_finalized for message in mixed] == [False, True, False, True]
        assert sorted(self.drain(box)) == sorted(message.body for message in late)

    def test_exchange_with_an_ended_lease_still_receives(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        self.fill(box, "late", "held", "next")
        late = self.take_one(box, self.moment)
        held = self.take_one(box)
        self.elapse(self.moment)
        got = box.exchange([late, held], max_messages=5, visibility_timeout=LONG)
        assert (late.is_finalized, held.is_finalized) == (False, True)
        assert [message.body for message in got] == ["next", "late"]
        assert box.approximate_count() == 2
