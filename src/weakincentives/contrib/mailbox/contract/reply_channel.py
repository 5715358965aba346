"""Tests of replies that the sender waits for: `send_expecting_reply`."""

import time
from typing import Any

import pytest

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.envelope import Envelope
from weakincentives.runtime.mailbox.errors import (
    MessageFinalizedError,
    ReplyAlreadySentError,
    ReplyCancelledError,
    ReplyExpectedError,
    ReplyTimeoutError,
    SerializationError,
)
from weakincentives.runtime.mailbox.seam.store import Outgoing

from .driver import DEADLINE, background
from .harness import LONG, Harness, refused

__all__ = ["ExpectingReply"]


class ExpectingReply(Harness):
    """Each request gets exactly one reply, whatever happens in between."""

    def test_the_reply_arrives_and_stays(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        assert (reply.is_ready(), reply.poll(), reply.is_cancelled()) == (False, None, False)
        message = self.take_one(box)
        assert message.expects_reply()
        assert message.reply_channel.id == reply.id
        assert message.reply({"answer": 42}) == reply.id
        assert message.is_finalized
        assert reply.is_ready()
        assert reply.poll() == {"answer": 42}
        assert reply.wait(timeout=60) == {"answer": 42}
        assert reply.wait() == {"answer": 42}
        assert reply.is_ready()
        assert reply.cancel() is False
        assert box.receive() == []

    def test_reply_then_acknowledge_is_fine(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box)
        message.reply(1)
        assert message.acknowledge() is True
        assert message.acknowledge() is True
        assert box.acknowledge_batch([message]) == [True]
        assert box.exchange([message]) == []
        assert message.acknowledge() is True
        assert reply.wait() == 1

    def test_exactly_one_reply(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box)
        message.reply("first")
        with pytest.raises(ReplyAlreadySentError):
            message.reply("second")
        assert reply.wait() == "first"

    def test_a_caller_blocks_until_the_reply(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        waiting = [background(reply.wait) for _ in range(2)]
        started = time.monotonic()
        self.take_one(box).reply("here")
        assert [each.result(DEADLINE) for each in waiting] == ["here", "here"]
        assert time.monotonic() - started < 60

    def test_another_mailbox_may_reply(self) -> None:
        box = self.mailbox()
        worker = self.again(box)
        reply = self.ask(box)
        self.take_one(worker).reply("from afar")
        assert reply.wait(timeout=60) == "from afar"

    def test_acknowledging_without_a_reply_is_refused(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box)
        with pytest.raises(ReplyExpectedError):
            message.acknowledge()
        assert not message.is_finalized
        message.reply("after all")
        assert reply.wait() == "after all"

    def test_a_nack_lets_somebody_else_reply(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        failed = self.take_one(box)
        assert failed.nack() is True
        with pytest.raises(MessageFinalizedError):
            failed.reply("too late")
        self.take_one(box).reply("second try")
        assert reply.wait() == "second try"

    def test_a_timeout_closes_nothing(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box)
        with pytest.raises(ReplyTimeoutError):
            reply.wait(timeout=0.05)
        with pytest.raises(TimeoutError):
            reply.wait(timeout=0)
        assert message.reply_channel.is_open()
        message.reply("slow")
        assert reply.wait(timeout=60) == "slow"

    def test_a_wait_ends_when_the_reply_expires(self) -> None:
        box = self.mailbox()
        reply = self.ask(box, reply_timeout=self.moment * 2)
        message = self.take_one(box)
        assert message.reply_channel.is_open()
        waiting = background(reply.wait)
        self.elapse(self.moment * 2)
        with pytest.raises(ReplyTimeoutError):
            waiting.result(DEADLINE)
        assert not message.reply_channel.is_open()
        with pytest.raises(ReplyTimeoutError):
            reply.wait()
        assert (reply.is_ready(), reply.is_cancelled(), reply.cancel()) == (True, False, False)
        assert message.acknowledge() is True

    def test_replying_to_an_expired_request_counts_as_done(self) -> None:
        box = self.mailbox()
        self.ask(box, reply_timeout=self.moment)
        message = self.take_one(box)
        self.elapse(self.moment)
        message.reply("nobody listens")
        assert message.is_finalized
        assert box.receive() == []

    def test_a_cancelled_request_need_not_be_worked_on(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box)
        assert reply.cancel() is True
        assert reply.is_cancelled()
        assert not message.reply_channel.is_open()
        assert reply.cancel() is False
        for wait in (reply.wait, reply.poll):
            with pytest.raises(ReplyCancelledError):
                wait()
        assert message.acknowledge() is True

    def test_replying_to_a_cancelled_request_counts_as_done(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box)
        reply.cancel()
        message.reply("nobody listens")
        assert message.acknowledge() is True
        assert box.receive() == []
        with pytest.raises(ReplyCancelledError):
            reply.wait()

    def test_cancelling_wakes_a_blocked_caller(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        waiting = background(reply.wait)
        reply.cancel()
        with pytest.raises(ReplyCancelledError):
            waiting.result(DEADLINE)

    def test_the_first_value_stands_when_the_work_is_done_twice(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        crashed = self.take_one(box)
        crashed.reply_channel.send("first")
        crashed.nack()
        second = self.take_one(box)
        second.reply("second")
        assert second.is_finalized
        assert box.receive() == []
        assert reply.wait() == "first"

    def test_work_that_was_answered_and_read_may_be_done_again(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        crashed = self.take_one(box)
        crashed.reply_channel.send("first")
        assert reply.wait() == "first"
        crashed.nack()
        second = self.take_one(box)
        assert not second.reply_channel.is_open()
        second.reply("second")
        assert second.is_finalized
        assert (reply.wait(), reply.poll()) == ("first", "first")

    def test_no_reply_after_the_lease_has_ended(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box, self.moment)
        self.elapse(self.moment)
        with refused():
            message.reply("too late")
        assert not reply.is_ready()
        self.take_one(box).reply("the other's")
        assert reply.wait() == "the other's"

    def test_a_channel_takes_one_value(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        channel = self.take_one(box).reply_channel
        assert channel.is_open()
        channel.send("first")
        assert not channel.is_open()
        with pytest.raises(ReplyAlreadySentError):
            channel.send("second")
        assert reply.wait() == "first"

    def test_a_reply_that_cannot_be_kept_leaves_the_message_held(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        message = self.take_one(box)
        try:
            message.reply(object())
        except SerializationError:
            assert not message.is_finalized
            with pytest.raises(ReplyExpectedError):
                message.acknowledge()
            message.reply("plain")
            assert reply.wait() == "plain"
        else:
            assert self.keeps_addresses(box), "an object went through JSON"

    def test_a_batch_refuses_what_still_owes_a_reply(self) -> None:
        box = self.mailbox()
        reply = self.ask(box)
        owing = self.take_one(box)
        box.send("plain")
        plain = self.take_one(box)
        with pytest.raises(ReplyExpectedError):
            box.acknowledge_batch([plain, owing])
        with pytest.raises(ReplyExpectedError):
            box.exchange([plain, owing])
        assert not plain.is_finalized
        owing.reply("paid")
        assert box.acknowledge_batch([plain, owing]) == [True, True]
        assert reply.wait() == "paid"

    def test_a_delayed_request_with_attributes(self) -> None:
        box = self.mailbox()
        self.needs(box, "delays")
        self.ask(box)
        self.take_one(box).reply(0)
        reply = box.send_expecting_reply(
            1, reply_timeout=LONG, delay_seconds=self.moment, attributes={"k": "v"}
        )
        self.elapse(self.moment)
        message = self.take_one(box)
        assert dict(message.attributes) == {"k": "v"}
        message.reply(2)
        assert reply.wait() == 2

    def test_a_reply_belongs_to_its_message(self) -> None:
        """A sender who learns another reply's id cannot make a worker answer it."""
        box, other = self.mailbox(), self.mailbox()
        reply = self.ask(box)
        asked = self.take_one(box)
        for queue in (other, box):  # a worker of another queue, and of the same one
            self.driver.call(queue.store.put, [self.forged(queue, reply.id)])
            message = self.take_one(queue)
            assert message.expects_reply()
            assert not message.reply_channel.is_open()
            message.reply_channel.send("from a stranger")
            assert message.reply("from a stranger") == reply.id
            assert message.is_finalized
            self.driver.call(queue.store.put, [self.forged(queue, reply.id)])
            assert self.take_one(queue).acknowledge() is True
            assert reply.poll() is None
        assert asked.reply_channel.is_open()
        asked.reply("from the one who was asked")
        assert reply.wait(timeout=DEADLINE) == "from the one who was asked"

    def forged(self, box: Any, reply_id: str) -> Outgoing:
        """Return a message whose envelope names the reply of another sender."""
        return Outgoing(new_id(), box._sealer.seal(Envelope("forged", reply_id=reply_id)))

    def test_many_callers_get_their_own_replies(self) -> None:
        box = self.mailbox()
        replies = [self.ask(box, n) for n in range(10)]
        waiting = [background(reply.wait) for reply in replies]
        for message in self.take(box, 10):
            message.reply(message.body * 2)
        assert [each.result(DEADLINE) for each in waiting] == [n * 2 for n in range(10)]
