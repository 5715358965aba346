"""Tests of cancelling single messages."""

from collections.abc import Callable
from typing import Any

import pytest

from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    ReplyCancelledError,
    UnsupportedOperationError,
)

from .harness import LONG, Harness

__all__ = ["Cancelling"]


class Cancelling(Harness):
    """A message that is cancelled is not delivered any more, and its holder can find out."""

    def cancelling_box(self) -> Any:
        """Return a mailbox that can cancel messages, or skip the test."""
        box = self.mailbox()
        self.needs(box, "cancels")
        return box

    def states(self, box: Any, *messages: Any) -> list[str]:
        """Return what the queue says of the leases of messages."""
        handles = [message.receipt_handle for message in messages]
        return list(self.driver.call(box.raw.store.lease_states, handles))

    def test_cancelling_by_id_works_or_is_refused(self) -> None:
        box = self.mailbox()
        id = box.send("job")
        if box.capabilities.cancels:
            assert box.cancel(id) is True
            assert box.receive() == []
        else:
            with pytest.raises(UnsupportedOperationError):
                box.cancel(id)

    def test_a_message_that_waits_is_removed(self) -> None:
        box = self.cancelling_box()
        first, second, _ = self.fill(box, 1, 2, 3)
        assert box.cancel(second) is True
        assert box.cancel(second) is False
        assert box.approximate_count() == 2
        assert self.drain(box) == [1, 3]
        assert box.cancel(first) is False
        assert box.cancel("unknown") is False

    def test_a_delayed_message_is_removed(self) -> None:
        box = self.cancelling_box()
        self.needs(box, "delays")
        later = box.send("later", delay_seconds=self.moment)
        assert box.cancel(later) is True
        assert box.approximate_count() == 0
        self.elapse(self.moment)
        assert box.receive() == []

    def test_a_nacked_message_is_removed(self) -> None:
        box = self.cancelling_box()
        id = box.send("job")
        self.take_one(box).nack()
        assert box.cancel(id) is True
        assert box.receive() == []
        id = box.send("job")
        self.take_one(box).nack(visibility_timeout=LONG)
        assert box.cancel(id) is True
        assert box.approximate_count() == 0

    def test_a_message_whose_id_the_sender_chose_is_removed(self) -> None:
        box = self.cancelling_box()
        box.send("job", message_id="order-7")
        assert box.cancel("order-7") is True
        assert box.receive() == []

    def test_the_holder_of_a_cancelled_message_can_find_out(self) -> None:
        box = self.cancelling_box()
        ids = self.fill(box, 1, 2)
        one, two = self.take(box, 2)
        assert self.states(box, one, two) == ["held", "held"]
        assert box.cancel(ids[0]) is True
        assert self.states(box, one, two) == ["cancelled", "held"]
        assert one.extend_visibility(LONG) is True
        assert self.states(box, one, two) == ["cancelled", "held"]
        assert one.acknowledge() is True
        assert self.states(box, one, two) == ["ended", "held"]
        assert box.approximate_count() == 1

    def test_a_cancelled_message_is_not_delivered_again(self) -> None:
        box = self.cancelling_box()
        ways: list[Callable[[Any], object]] = [
            lambda message: message.nack(),
            lambda message: message.nack(visibility_timeout=self.moment),
            lambda message: box.release_batch([message]),
        ]
        for give_back in ways:
            id = box.send("job")
            message = self.take_one(box)
            assert box.cancel(id) is True
            give_back(message)
            self.elapse(self.moment)
            assert box.receive() == []
            assert box.approximate_count() == 0

    def test_a_cancelled_message_whose_lease_ends_is_not_delivered_again(self) -> None:
        box = self.cancelling_box()
        id = box.send("job")
        message = self.take_one(box, lease=self.moment)
        assert box.cancel(id) is True
        self.elapse(self.moment)
        assert box.receive() == []
        assert self.states(box, message) == ["ended"]
        assert box.approximate_count() == 0
        assert box.cancel(id) is False

    def test_cancelling_a_message_cancels_its_reply(self) -> None:
        box = self.cancelling_box()
        reply = self.ask(box)
        assert box.cancel(reply.message_id) is True
        assert reply.is_cancelled()
        with pytest.raises(ReplyCancelledError):
            reply.wait()
        assert box.receive() == []

    def test_cancelling_a_reply_cancels_its_message(self) -> None:
        box = self.cancelling_box()
        waiting, running = self.ask(box, "first"), self.ask(box, "second")
        assert waiting.cancel() is True
        assert box.approximate_count() == 1
        message = self.take_one(box)
        assert message.body == "second"
        assert self.handle(self.again(box), running.id).cancel() is True
        assert self.states(box, message) == ["cancelled"]
        with pytest.raises(ReplyCancelledError):
            running.wait()

    def test_an_answered_job_cannot_be_cancelled(self) -> None:
        box = self.cancelling_box()
        reply = self.ask(box)
        self.take_one(box).reply("answer")
        assert reply.cancel() is False
        assert box.cancel(reply.message_id) is False
        assert reply.wait() == "answer"

    def test_bad_ids_are_refused(self) -> None:
        box = self.cancelling_box()
        for id in ("", "a b", "x" * 200, None, 7):
            with pytest.raises(InvalidParameterError, match="message_id"):
                box.cancel(id)
