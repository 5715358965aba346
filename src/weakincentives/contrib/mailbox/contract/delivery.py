"""Tests of sending, receiving and settling, and of the order of messages."""

from datetime import UTC, timedelta
from typing import Any

import pytest

from weakincentives.runtime.mailbox.errors import (
    MailboxClosedError,
    MailboxFullError,
    SerializationError,
)

from .harness import LONG, Harness, refused

__all__ = ["Delivery"]


class Delivery(Harness):
    """A message is sent, received once, and gone after it is acknowledged."""

    def test_what_was_sent_arrives(self) -> None:
        box = self.mailbox()
        sent = box.send({"order": 7})
        message = self.take_one(box)
        assert (message.id, message.body) == (sent, {"order": 7})
        assert (message.delivery_count, message.nack_count) == (1, 0)
        assert message.enqueued_at.utcoffset() == message.first_received_at.utcoffset()
        assert message.enqueued_at.tzinfo == UTC
        # One second of tolerance, because the two times may come from two clocks.
        assert message.enqueued_at <= message.first_received_at + timedelta(seconds=1)
        assert message.receipt_handle
        assert not message.is_finalized
        assert not message.expects_reply()
        assert message.reply_channel is None
        assert message.reply_to is None

    def test_an_empty_queue_is_an_empty_list(self) -> None:
        assert self.mailbox().receive() == []

    def test_queues_are_apart(self) -> None:
        one, other = self.mailbox(), self.mailbox()
        one.send("for one")
        assert other.receive() == []
        assert self.take_one(one).body == "for one"

    def test_a_second_mailbox_sees_the_same_queue(self) -> None:
        box = self.mailbox()
        box.send("hello")
        message = self.take_one(self.again(box))
        assert message.body == "hello"
        assert box.receive() == []
        message.acknowledge()

    def test_first_deliveries_come_in_order(self) -> None:
        box = self.mailbox()
        self.needs(box, "ordered")
        self.fill(box, *range(5))
        box.send_batch(list(range(5, 9)))
        box.send(9)
        bodies = [message.body for message in self.take(box, 3)]
        while len(bodies) < 10:
            bodies.append(self.take_one(box).body)
        assert bodies == list(range(10))

    def test_a_batch_is_sent_in_one_call(self) -> None:
        box = self.mailbox()
        ids = box.send_batch(["a", "b", "c"])
        assert len(set(ids)) == 3
        assert {m.id: m.body for m in self.take(box, 3)} == dict(zip(ids, "abc", strict=True))

    def test_an_empty_batch_is_nothing(self) -> None:
        box = self.mailbox()
        assert box.send_batch([]) == []
        assert box.receive() == []

    def test_receive_returns_no_more_than_asked(self) -> None:
        box = self.mailbox()
        self.fill(box, *range(5))
        got = box.receive(max_messages=3, visibility_timeout=LONG, wait_time_seconds=1)
        assert isinstance(got, list)
        assert 1 <= len(got) <= 3
        if box.capabilities.exact_counts:
            assert len(got) == 3
            assert len(box.receive(max_messages=3, visibility_timeout=LONG)) == 2

    def test_what_is_leased_is_hidden(self) -> None:
        box = self.mailbox()
        box.send("mine")
        message = self.take_one(box)
        assert box.receive() == []
        assert message.acknowledge() is True

    def test_acknowledge_removes(self) -> None:
        box = self.mailbox()
        box.send("done")
        message = self.take_one(box)
        assert message.acknowledge() is True
        assert message.is_finalized
        assert box.receive() == []
        if box.capabilities.exact_counts:
            assert box.approximate_count() == 0

    def test_settled_messages_cannot_be_settled_again(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2)
        acknowledged, nacked = self.take(box, 2)
        acknowledged.acknowledge()
        nacked.nack(visibility_timeout=LONG) if box.capabilities.delays else nacked.nack()
        for message in (acknowledged, nacked):
            for settle in (message.acknowledge, message.nack):
                with refused():
                    settle()
            with refused():
                message.extend_visibility(LONG)

    def test_nack_gives_back_at_once(self) -> None:
        box = self.mailbox()
        box.send("again")
        first = self.take_one(box)
        assert first.nack() is True
        assert first.is_finalized
        second = self.take_one(box)
        assert (second.id, second.body) == (first.id, "again")
        assert second.delivery_count == 2
        assert second.receipt_handle != first.receipt_handle
        assert second.enqueued_at == first.enqueued_at
        assert second.first_received_at == first.first_received_at
        if box.capabilities.nack_counts:
            assert second.nack_count == 1

    def test_counts_add_up(self) -> None:
        box = self.mailbox()
        box.send("poison")
        handles = set()
        for delivery in range(1, 6):
            message = self.take_one(box)
            handles.add(message.receipt_handle)
            assert message.delivery_count == delivery
            if box.capabilities.nack_counts:
                assert message.nack_count == delivery - 1
            message.nack()
        assert len(handles) == 5

    def test_a_nacked_message_goes_to_the_back(self) -> None:
        box = self.mailbox()
        self.needs(box, "ordered")
        self.fill(box, "poison", "b", "c")
        self.take_one(box).nack()
        assert [self.take_one(box).body for _ in range(3)] == ["b", "c", "poison"]

    def test_a_filter_that_nacks_makes_progress(self) -> None:
        box = self.mailbox()
        self.fill(box, "other 1", "other 2", "mine")
        seen: list[str] = []
        while "mine" not in seen and len(seen) < 30:
            message = self.take_one(box)
            seen.append(message.body)
            message.nack()
        assert "mine" in seen

    def test_acknowledge_batch(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2, 3)
        messages = self.take(box, 3)
        assert box.acknowledge_batch(messages) == [True, True, True]
        assert all(message.is_finalized for message in messages)
        assert box.acknowledge_batch([]) == []
        assert box.receive() == []

    def test_exchange_acknowledges_and_receives(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2)
        first = self.take_one(box)
        (second,) = box.exchange([first], visibility_timeout=LONG, wait_time_seconds=5)
        assert first.is_finalized
        assert {first.body, second.body} == {1, 2}
        assert box.exchange([second]) == []
        assert second.is_finalized
        if box.capabilities.exact_counts:
            assert box.approximate_count() == 0

    def test_a_closed_mailbox_sends_and_receives_nothing(self) -> None:
        box = self.mailbox()
        reader = self.again(box)
        box.send("left behind")
        box.close()
        box.close()
        assert box.closed
        assert box.receive() == []
        assert box.receive(wait_time_seconds=5) == []
        calls: list[Any] = [
            lambda: box.send(1),
            lambda: box.send_batch([1]),
            lambda: box.send_expecting_reply(1),
        ]
        for call in calls:
            with pytest.raises(MailboxClosedError):
                call()
        assert self.drain(reader) == ["left behind"]

    def test_a_large_batch_is_sent_in_parts_and_in_order(self) -> None:
        box = self.mailbox()
        count = min(2 * box.limits.max_send_batch, 2000) + 5
        ids = box.send_batch(list(range(count)))
        assert len(set(ids)) == count
        if box.capabilities.exact_counts:
            assert box.approximate_count() == count
        if box.capabilities.ordered:
            assert [message.body for message in self.take(box, 10)] == list(range(10))

    def test_a_large_batch_that_fails_in_part_says_what_was_sent(self) -> None:
        box = self.mailbox(max_size=1500)
        self.needs(box, "atomic_batches")
        size = box.limits.max_send_batch
        if size > 1500:
            pytest.skip("this mailbox stores a batch of this size in one step")
        with pytest.raises(MailboxFullError) as caught:
            box.send_batch(list(range(size + 600)))
        assert len(caught.value.sent_ids) == size
        assert "nothing was sent" not in str(caught.value)
        assert box.approximate_count() == size
        assert any(f"{size} of {size + 600}" in note for note in caught.value.__notes__)
        first = self.take_one(box)
        assert (first.body, first.id) == (0, caught.value.sent_ids[0])

    def test_a_large_batch_with_a_bad_body_is_not_sent_at_all(self) -> None:
        box = self.mailbox()
        if self.keeps_bodies(box):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        count = min(box.limits.max_send_batch, 2000)
        with pytest.raises(SerializationError) as caught:
            box.send_batch([*range(count), object()])
        assert len(caught.value.sent_ids) == 0
        assert box.receive() == []

    def test_a_closed_mailbox_can_be_opened_again(self) -> None:
        box = self.mailbox()
        box.send("left behind")
        box.close()
        again = self.again(box)
        assert not again.closed
        assert self.take_one(again).body == "left behind"

    def test_what_was_received_can_be_settled_after_close(self) -> None:
        box = self.mailbox()
        reader = self.again(box)
        self.fill(box, 1, 2, 3, 4)
        acked, nacked, batched, exchanged = self.take(box, 4)
        box.close()
        assert acked.extend_visibility(LONG) is True
        assert acked.acknowledge() is True
        assert nacked.nack() is True
        assert box.acknowledge_batch([batched]) == [True]
        assert box.exchange([exchanged]) == []
        assert exchanged.is_finalized
        assert [m.body for m in self.take(reader, 1)] == [nacked.body]

    def test_a_mailbox_is_a_context_manager(self) -> None:
        box = self.mailbox()
        with box.raw as entered:
            assert entered is box.raw
            box.send(1)
        assert box.closed
