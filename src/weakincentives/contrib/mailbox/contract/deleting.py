"""Tests of deleting a queue."""

import threading
from typing import Any

import pytest

from weakincentives.runtime.mailbox.errors import (
    MailboxResolutionError,
    QueueNotEmptyError,
    ReplyTimeoutError,
)

from .driver import background
from .harness import LONG, Harness, refused

__all__ = ["Deleting"]


class Deleting(Harness):
    """A deleted queue is as if it had never been; one with messages is deleted only by force."""

    def deletable_box(self) -> Any:
        """Return a mailbox whose queue comes back with the next message, or skip the test."""
        box = self.mailbox()
        self.needs(box, "makes_queues")
        return box

    def delete(self, box: Any, force: bool = False) -> bool:
        """Delete the queue of a mailbox."""
        return bool(self.driver.call(box.raw.store.delete, force))

    def test_a_queue_with_messages_is_not_deleted(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2, 3)
        held = self.take_one(box)
        if box.capabilities.delays:
            box.send(4, delay_seconds=LONG)
        with pytest.raises(QueueNotEmptyError, match="was not deleted") as refusal:
            self.delete(box)
        if box.capabilities.exact_counts:
            told = refusal.value
            delayed = 1 if box.capabilities.delays else 0
            assert (told.pending, told.in_flight, told.delayed) == (2, 1, delayed)
        assert held.acknowledge() is True
        assert {held.body, *(message.body for message in self.take(box, 2))} == {1, 2, 3}

    def test_force_removes_the_messages_too(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2)
        self.take_one(box)
        assert self.delete(box, force=True) is True
        assert self.delete(box, force=True) is False
        assert self.delete(box) is False
        if box.capabilities.makes_queues:
            assert box.receive() == []
            assert box.approximate_count() == 0
        else:
            with pytest.raises(MailboxResolutionError):
                box.send(1)

    def test_an_empty_queue_is_deleted_without_force(self) -> None:
        box = self.mailbox()
        self.fill(box, 1)
        self.take_one(box).acknowledge()
        assert self.delete(box) in (True, False)  # for some backends an empty queue is none
        assert self.delete(box) is False

    def test_what_was_cancelled_is_no_message_once_its_lease_is_over(self) -> None:
        box = self.deletable_box()
        self.needs(box, "cancels")
        id = box.send(1)
        self.take_one(box, lease=self.moment)
        assert box.cancel(id) is True
        self.elapse(self.moment)
        self.delete(box)
        assert box.send(2)
        with pytest.raises(QueueNotEmptyError, match="1 pending, 0 in flight"):
            self.delete(box)

    def test_the_next_message_makes_it_anew(self) -> None:
        box = self.deletable_box()
        other = self.again(box)
        self.fill(box, 1, 2)
        assert sorted(message.body for message in self.take(other, 2)) == [1, 2]
        assert self.delete(box, force=True) is True
        assert other.receive() == []
        other.send(3)
        message = self.take_one(box)
        assert (message.body, message.delivery_count) == (3, 1)
        assert message.acknowledge() is True
        assert box.send_batch([4, 5])
        assert sorted(self.drain(other)) == [4, 5]
        assert other.approximate_count() == 0

    def test_a_lease_on_a_deleted_queue_has_ended(self) -> None:
        box = self.deletable_box()
        box.send(1, message_id="order-7")
        self.fill(box, *"abc")
        held, other, third, fourth = self.take(box, 4)
        assert self.delete(box, force=True) is True
        assert box.release_batch([third]) == [False]
        assert box.acknowledge_batch([fourth]) == [False]
        box.send(3, message_id="order-7")
        with refused():
            held.acknowledge()
        with refused():
            other.nack()
        with refused():
            held.extend_visibility(LONG)
        assert self.drain(self.again(box)) == [3]
        assert box.receive() == []

    def test_the_ids_are_forgotten(self) -> None:
        box = self.deletable_box()
        box.send(1, message_id="order-7")
        assert self.drain(box) == [1]
        self.delete(box)
        box.send(2, message_id="order-7")
        assert self.drain(box) == [2]

    def test_a_consumer_that_waits_gets_what_is_sent_afterwards(self) -> None:
        box = self.deletable_box()
        consumer = self.again(box)
        box.send("before")
        assert self.drain(consumer) == ["before"]
        waiting = background(consumer.receive, wait_time_seconds=10)
        self.delete(box)
        box.send("after")
        assert [message.body for message in waiting.result()] == ["after"]

    def test_the_caller_of_a_deleted_message_sees_it_expire(self) -> None:
        box = self.deletable_box()
        reply = self.ask(box, reply_timeout=self.moment)
        assert self.delete(box, force=True) is True
        self.elapse(self.moment)
        with pytest.raises(ReplyTimeoutError):
            reply.wait()

    def test_no_message_that_was_sent_is_lost_without_force(self) -> None:
        box = self.deletable_box()
        senders, consumer = [self.again(box) for _ in range(2)], self.again(box)
        stop = threading.Event()

        def send(sender: Any, first: int) -> list[int]:
            bodies = list(range(first, first + 20))
            for body in bodies:
                sender.send(body)
            return bodies

        def delete() -> int:
            deleted = 0
            while not stop.is_set():
                try:
                    deleted += self.delete(box)
                except QueueNotEmptyError:
                    pass
            return deleted

        deleting = background(delete)
        try:
            sending = [background(send, sender, 100 * n) for n, sender in enumerate(senders)]
            got = [message.body for message in self.take_and_acknowledge(consumer, 40)]
            sent = [body for one in sending for body in one.result()]
        finally:
            stop.set()
        deleting.result()
        assert sorted(got) == sorted(sent)
        assert box.approximate_count() == 0

    def take_and_acknowledge(self, box: Any, count: int) -> list[Any]:
        """Receive and acknowledge so many messages, one after the other."""
        taken = []
        for _ in range(count):
            message = self.take_one(box)
            assert message.acknowledge() is True
            taken.append(message)
        return taken
