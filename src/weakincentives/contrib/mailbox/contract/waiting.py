"""Tests of delays and of long polls."""

import time
from concurrent.futures import Future
from typing import Any

from .driver import DEADLINE, background
from .harness import LONG, Harness

__all__ = ["Waiting"]


class Waiting(Harness):
    """A waiting consumer wakes when a message is sent or becomes due, and on close."""

    def poll_length(self, box: Any) -> int:
        """Return a wait time that is far longer than any test should take."""
        return int(min(20, box.limits.max_wait))

    def assert_woken(self, box: Any, started: float) -> None:
        """Check that a long poll ended because it was woken, and not because its time was over."""
        assert time.monotonic() - started < 0.75 * self.poll_length(box)

    def test_a_long_poll_returns_what_is_there_at_once(self) -> None:
        box = self.mailbox()
        self.fill(box, 1, 2)
        started = time.monotonic()
        got = box.receive(max_messages=10, wait_time_seconds=self.poll_length(box))
        assert 1 <= len(got) <= 2
        if box.capabilities.exact_counts:
            assert len(got) == 2
        self.assert_woken(box, started)

    def test_a_long_poll_that_hears_nothing_ends_in_time(self) -> None:
        box = self.mailbox()
        started = time.monotonic()
        assert box.receive(wait_time_seconds=1) == []
        assert 0.9 < time.monotonic() - started < 30

    def test_a_send_wakes_a_long_poll(self) -> None:
        box = self.mailbox()
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        started = time.monotonic()
        box.send("wake up")
        (message,) = waiting.result(DEADLINE)
        assert message.body == "wake up"
        self.assert_woken(box, started)

    def test_a_send_through_another_mailbox_wakes_a_long_poll(self) -> None:
        box = self.mailbox()
        sender = self.again(box)
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        started = time.monotonic()
        sender.send("wake up")
        (message,) = waiting.result(DEADLINE)
        assert message.body == "wake up"
        self.assert_woken(box, started)

    def test_a_nack_wakes_a_long_poll(self) -> None:
        box = self.mailbox()
        box.send("again")
        held = self.take_one(box)
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        started = time.monotonic()
        held.nack()
        (message,) = waiting.result(DEADLINE)
        assert message.delivery_count == 2
        self.assert_woken(box, started)

    def test_a_batch_wakes_every_waiter(self) -> None:
        box = self.mailbox()
        waiting = [
            background(
                box.receive, visibility_timeout=LONG, wait_time_seconds=self.poll_length(box)
            )
            for _ in range(3)
        ]
        started = time.monotonic()
        box.send_batch([1, 2, 3])
        bodies = [message.body for each in waiting for message in each.result(DEADLINE)]
        assert sorted(bodies) == [1, 2, 3]
        self.assert_woken(box, started)

    def test_an_elapsed_lease_wakes_a_long_poll(self) -> None:
        box = self.mailbox()
        box.send("abandoned")
        self.take_one(box, self.moment)
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        self.elapse(self.moment)
        (message,) = waiting.result(DEADLINE)
        assert message.delivery_count == 2

    def test_an_elapsed_delay_wakes_a_long_poll(self) -> None:
        box = self.mailbox()
        self.needs(box, "delays")
        box.send("later", delay_seconds=self.moment)
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        self.elapse(self.moment)
        (message,) = waiting.result(DEADLINE)
        assert (message.body, message.delivery_count) == ("later", 1)

    def test_a_delayed_send_wakes_who_waited_before(self) -> None:
        box = self.mailbox()
        self.needs(box, "delays")
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        box.send("later", delay_seconds=self.moment)
        self.assert_comes_due(box, waiting, "later")

    def test_a_delayed_nack_wakes_who_waited_before(self) -> None:
        box = self.mailbox()
        box.send("nacked")
        message = self.take_one(box)
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        message.nack(visibility_timeout=self.moment)
        self.assert_comes_due(box, waiting, "nacked")

    def test_a_shortened_lease_wakes_who_waited_before(self) -> None:
        box = self.mailbox()
        box.send("abandoned")
        message = self.take_one(box)
        waiting = background(box.receive, wait_time_seconds=self.poll_length(box))
        message.extend_visibility(self.moment)
        self.assert_comes_due(box, waiting, "abandoned")

    def assert_comes_due(self, box: Any, waiting: "Future[Any]", body: str) -> None:
        """Check that the waiting consumer gets the message long before its wait time is over."""
        started = time.monotonic()
        self.elapse(self.moment)
        (received,) = waiting.result(DEADLINE)
        assert received.body == body
        self.assert_woken(box, started)

    def test_a_lease_extended_while_a_consumer_waits_stays(self) -> None:
        box = self.mailbox()
        box.send("held")
        held = self.take_one(box, self.moment * 4)
        waiting = background(
            box.receive, visibility_timeout=LONG, wait_time_seconds=self.poll_length(box)
        )
        held.extend_visibility(LONG)
        self.elapse(self.moment * 4)
        box.send("free")
        assert [message.body for message in waiting.result(DEADLINE)] == ["free"]
        assert held.acknowledge() is True

    def test_close_interrupts_long_polls(self) -> None:
        box = self.mailbox()
        waiting = [
            background(box.receive, wait_time_seconds=self.poll_length(box)) for _ in range(3)
        ]
        started = time.monotonic()
        box.close()
        assert [each.result(DEADLINE) for each in waiting] == [[], [], []]
        self.assert_woken(box, started)

    def test_close_leaves_other_mailboxes_waiting(self) -> None:
        box = self.mailbox()
        other = self.again(box)
        waiting = background(other.receive, wait_time_seconds=self.poll_length(box))
        closing = background(box.receive, wait_time_seconds=self.poll_length(box))
        box.close()
        assert closing.result(DEADLINE) == []
        other.send("still here")
        (message,) = waiting.result(DEADLINE)
        assert message.body == "still here"

    def test_a_delayed_message_is_hidden_until_it_is_due(self) -> None:
        box = self.mailbox()
        self.needs(box, "delays")
        box.send("far", delay_seconds=LONG)
        box.send_batch(["near", "near"], delay_seconds=self.moment * 4)
        assert box.receive() == []
        if box.capabilities.exact_counts:
            assert box.stats().delayed == 3
        box.send("now")
        assert self.take_one(box).body == "now"
        self.elapse(self.moment * 4)
        assert [message.body for message in self.take(box, 2)] == ["near", "near"]
        assert box.receive() == []

    def test_a_nack_with_a_delay_hides_the_message(self) -> None:
        box = self.mailbox()
        self.fill(box, "soon", "late")
        for message in self.take(box, 2):
            delay = self.moment * 4 if message.body == "soon" else LONG
            assert message.nack(visibility_timeout=delay) is True
        assert box.receive() == []
        if box.capabilities.exact_counts:
            assert (box.stats().delayed, box.stats().in_flight) == (2, 0)
        self.elapse(self.moment * 4)
        again = self.take_one(box)
        assert (again.body, again.delivery_count) == ("soon", 2)
        assert box.receive() == []
