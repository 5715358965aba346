"""Tests of releasing messages: which counts go up after a failure, a put-off, or no run at all."""

from typing import Any

from weakincentives.runtime.mailbox.seam.store import GivingBack

from .harness import LONG, Harness

__all__ = ["Releasing"]


class Releasing(Harness):
    """A message that was not run is released as if it had never been leased."""

    def release(
        self, box: Any, messages: list[Any], how: GivingBack, delay: float = 0
    ) -> list[bool]:
        """Release messages in one step, as loops do."""
        return box.release_batch(messages, delay, how)  # type: ignore[no-any-return]

    def test_undone_counts_nothing(self) -> None:
        box = self.mailbox()
        self.needs(box, "uncounted_releases")
        box.send("waits its turn")
        for _ in range(5):
            message = self.take_one(box)
            assert (message.delivery_count, message.nack_count, message.attempts) == (1, 0, 1)
            assert self.release(box, [message], "undone") == [True]
        last = self.take_one(box)
        assert (last.delivery_count, last.nack_count, last.put_off_count) == (1, 0, 0)
        assert last.acknowledge() is True

    def test_undone_keeps_what_was_counted_before(self) -> None:
        box = self.mailbox()
        self.needs(box, "uncounted_releases")
        box.send("again")
        first = self.take_one(box)
        first.nack()
        second = self.take_one(box)
        self.release(box, [second], "undone")
        third = self.take_one(box)
        assert (third.delivery_count, third.nack_count) == (2, 1)
        assert third.first_received_at == first.first_received_at
        assert third.receipt_handle != second.receipt_handle

    def test_put_off_is_counted_apart(self) -> None:
        box = self.mailbox()
        self.needs(box, "uncounted_releases")
        box.send("not yet")
        ways: list[GivingBack] = ["put_off", "failed", "undone", "put_off", "undone"]
        for how in ways:
            self.release(box, [self.take_one(box)], how)
        message = self.take_one(box)
        assert (message.delivery_count, message.nack_count) == (4, 3)
        assert (message.put_off_count, message.attempts) == (2, 2)

    def test_counts_are_kept_when_a_lease_runs_out(self) -> None:
        box = self.mailbox()
        self.needs(box, "uncounted_releases")
        box.send("crash")
        self.release(box, [self.take_one(box)], "put_off")
        self.take_one(box, self.moment)
        self.elapse(self.moment)
        message = self.take_one(box)
        assert (message.delivery_count, message.nack_count) == (3, 1)
        assert (message.put_off_count, message.attempts) == (1, 2)

    def test_no_delivery_has_a_smaller_count_than_an_earlier_one(self) -> None:
        box = self.mailbox()
        box.send("INV-4")
        counts = []
        ways: list[GivingBack] = ["undone", "failed", "undone", "put_off", "undone", "undone"]
        for how in ways:
            message = self.take_one(box)
            counts.append(message.delivery_count)
            self.release(box, [message], how)
        assert counts == sorted(counts)

    def test_a_message_named_twice_is_given_back_once(self) -> None:
        box = self.mailbox()
        ways: list[GivingBack] = ["undone", "failed", "put_off"]
        for how in ways:
            box.send("only one")
            message = self.take_one(box)
            self.release(box, [message, message], how)
            again = self.take_one(box)
            assert again.id == message.id
            assert list(box.receive(max_messages=10)) == []
            again.acknowledge()

    def test_a_delay_holds_however_the_message_is_given_back(self) -> None:
        box = self.mailbox()
        self.needs(box, "uncounted_releases")
        self.needs(box, "delays")
        self.fill(box, "put off", "undone")
        put_off, undone = self.take(box, 2)
        self.release(box, [put_off], "put_off", self.moment * 4)
        self.release(box, [undone], "undone", self.moment * 4)
        assert (box.stats().delayed, box.receive()) == (2, [])
        self.elapse(self.moment * 4)
        counts = {m.body: (m.delivery_count, m.attempts) for m in self.take(box, 2)}
        assert counts == {"put off": (2, 1), "undone": (1, 1)}

    def test_undone_messages_return_to_their_place(self) -> None:
        box = self.mailbox()
        self.needs(box, "uncounted_releases")
        self.needs(box, "ordered")
        self.fill(box, *range(6))
        taken = self.take(box, 4)
        taken[0].acknowledge()
        assert self.release(box, taken[1:], "undone") == [True, True, True]
        assert box.stats().pending == 5
        assert [seen.body for seen in box.peek()] == [1, 2, 3, 4, 5]
        assert [message.body for message in self.take(box, 5)] == [1, 2, 3, 4, 5]
        assert box.receive() == []

    def test_undone_one_by_one_nothing_is_lost_or_doubled(self) -> None:
        box = self.mailbox()
        self.needs(box, "uncounted_releases")
        self.fill(box, *range(5))
        taken = self.take(box, 5)
        for place in (2, 0, 4):
            self.release(box, [taken[place]], "undone")
        taken[1].acknowledge()
        self.fill(box, 5)
        taken[3].nack()
        assert (box.stats().pending, box.approximate_count()) == (5, 5)
        assert sorted(message.body for message in self.take(box, 5)) == [0, 2, 3, 4, 5]
        assert box.receive() == []

    def test_a_loop_gives_back_what_it_has_not_run(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2, 3)
        messages = self.take(box, 3)
        messages[0].acknowledge()
        assert box.release_batch(messages) == [True, True, True]
        assert all(message.is_finalized for message in messages)
        again = self.take(box, 2)
        counts = [1, 1] if box.capabilities.uncounted_releases else [2, 2]
        assert [message.delivery_count for message in again] == counts

    def test_a_loop_learns_which_leases_had_ended(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        self.fill(box, "late", "held")
        (late,) = self.take(box, 1, self.moment)
        (held,) = self.take(box, 1, LONG)
        self.elapse(self.moment)
        assert box.release_batch([late, held]) == [False, True]
        assert (late.is_finalized, held.is_finalized) == (False, True)
