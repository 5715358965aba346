"""Tests of replies to the mailbox that the sender named with ``reply_to``."""

from typing import Any

import pytest

from weakincentives.runtime.mailbox.errors import (
    MailboxClosedError,
    MailboxResolutionError,
    MessageFinalizedError,
    NoReplyChannelError,
    ReplyNotAvailableError,
    SerializationError,
)
from weakincentives.runtime.mailbox.resolver import RegistryResolver

from .harness import Harness, refused

__all__ = ["ReplyTo"]


class ReplyTo(Harness):
    """A message sent with ``reply_to`` can be replied to any number of times until settled."""

    def pair(self) -> tuple[Any, Any]:
        """Return a mailbox for requests and one for their replies."""
        replies = self.mailbox()
        return self.mailbox(reply_resolver=RegistryResolver({replies.name: replies.raw})), replies

    def test_many_replies_then_finalised(self) -> None:
        requests, replies = self.pair()
        requests.send("work", reply_to=replies)
        message = self.take_one(requests)
        assert message.reply_to.name == replies.name
        assert not message.expects_reply()
        ids = [message.reply(value) for value in ("started", "half", "done")]
        assert message.acknowledge() is True
        with pytest.raises(MessageFinalizedError):
            message.reply("too late")
        got = {reply.id: reply.body for reply in self.take(replies, 3)}
        assert got == dict(zip(ids, ("started", "half", "done"), strict=True))
        assert replies.receive() == []

    def test_no_reply_after_a_nack(self) -> None:
        requests, replies = self.pair()
        requests.send("work", reply_to=replies)
        message = self.take_one(requests)
        message.nack()
        with pytest.raises(MessageFinalizedError):
            message.reply("too late")
        again = self.take_one(requests)
        again.reply("in time")
        assert self.drain(replies) == ["in time"]

    def test_a_batch_shares_its_reply_to(self) -> None:
        requests, replies = self.pair()
        requests.send_batch([1, 2], reply_to=replies)
        for message in self.take(requests, 2):
            message.reply(message.body * 10)
            message.acknowledge()
        assert sorted(self.drain(replies)) == [10, 20]

    def test_nowhere_to_reply(self) -> None:
        box = self.mailbox()
        box.send("fire and forget")
        message = self.take_one(box)
        with pytest.raises(ReplyNotAvailableError):
            message.reply("hello?")
        with pytest.raises(NoReplyChannelError):
            message.reply("hello?")
        assert message.acknowledge() is True

    def test_no_reply_after_the_lease_has_ended(self) -> None:
        requests, replies = self.pair()
        requests.send("work", reply_to=replies)
        message = self.take_one(requests, self.moment)
        self.elapse(self.moment)
        with refused():
            message.reply("too late")
        assert replies.receive() == []
        assert self.take_one(requests).delivery_count == 2

    def test_no_reply_once_a_settlement_was_refused(self) -> None:
        requests, replies = self.pair()
        self.needs(requests, "fenced")
        requests.send("work", reply_to=replies)
        message = self.take_one(requests)
        requests.purge()
        with refused():
            message.extend_visibility(self.moment)
        with refused():
            message.reply("for nobody")
        assert replies.receive() == []

    def test_extending_prolongs_the_right_to_reply(self) -> None:
        requests, replies = self.pair()
        requests.send("work", reply_to=replies)
        message = self.take_one(requests, self.moment * 4)
        message.extend_visibility(60)
        self.elapse(self.moment * 4)
        message.reply("in time")
        assert self.drain(replies) == ["in time"]

    def test_a_name_that_nobody_knows_fails_that_message(self) -> None:
        replies = self.mailbox()
        requests = self.mailbox(reply_resolver=RegistryResolver({}))
        if self.keeps_addresses(requests):
            pytest.skip("this mailbox keeps reply addresses as live objects")
        requests.send("work", reply_to=replies)
        requests.send("more")
        message, other = sorted(self.take(requests, 2), key=lambda m: m.body, reverse=True)
        with pytest.raises(MailboxResolutionError, match=replies.name) as caught:
            _ = message.reply_to
        assert caught.value.identifier == replies.name
        with pytest.raises(MailboxResolutionError, match=replies.name):
            message.reply("x")
        assert other.acknowledge() is True
        assert message.nack() is True
        assert self.take_one(requests).delivery_count == 2

    def test_told_no_resolver_it_resolves_its_own_or_says_so(self) -> None:
        replies, requests = self.mailbox(), self.mailbox()
        requests.send("work", reply_to=replies)
        message = self.take_one(requests)
        try:
            message.reply("found")
        except MailboxResolutionError as error:
            assert error.identifier == replies.name
            assert replies.receive() == []
        else:
            assert self.drain(replies) == ["found"]
        assert message.acknowledge() is True

    def test_a_reply_to_a_closed_mailbox_leaves_the_message_held(self) -> None:
        requests, replies = self.pair()
        requests.send("work", reply_to=replies)
        message = self.take_one(requests)
        replies.close()
        with pytest.raises(MailboxClosedError):
            message.reply("x")
        assert message.nack() is True
        assert self.take_one(requests).delivery_count == 2

    def test_a_reply_that_cannot_be_sent_leaves_the_message_held(self) -> None:
        requests, replies = self.pair()
        if self.keeps_bodies(replies):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        requests.send("work", reply_to=replies)
        message = self.take_one(requests)
        with pytest.raises(SerializationError):
            message.reply(object())
        assert replies.receive() == []
        message.reply("plain")
        assert message.acknowledge() is True
        assert self.drain(replies) == ["plain"]
