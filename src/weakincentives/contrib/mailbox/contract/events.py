"""Tests of the events that a mailbox publishes to a Dispatcher."""

from typing import Any

from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime.mailbox.events import (
    LeaseExtended,
    LeaseLost,
    LeasesExpired,
    MailboxEvent,
    MessageAcknowledged,
    MessageNacked,
    MessageReceived,
    MessageReplied,
    MessagesDropped,
    MessageSent,
)
from weakincentives.runtime.mailbox.resolver import RegistryResolver

from .harness import LONG, Harness, refused

__all__ = ["Events"]


class Events(Harness):
    """A mailbox publishes an event after each thing that has happened."""

    def observed(self, **options: Any) -> tuple[Any, list[MailboxEvent]]:
        """Return a mailbox and the list that collects its events."""
        dispatcher = InProcessDispatcher()
        seen: list[MailboxEvent] = []
        dispatcher.subscribe(MailboxEvent, seen.append)
        return self.mailbox(dispatcher=dispatcher, **options), seen

    def test_the_life_of_a_message(self) -> None:
        box, seen = self.observed()
        name = box.name
        first = box.send(1)
        message = self.take_one(box)
        message.extend_visibility(LONG)
        message.nack()
        self.take_one(box).acknowledge()
        assert seen == [
            MessageSent(name, first),
            MessageReceived(name, first, 1),
            LeaseExtended(name, first, LONG),
            MessageNacked(name, first, 0),
            MessageReceived(name, first, 2),
            MessageAcknowledged(name, first),
        ]

    def test_batches_tell_of_each_message(self) -> None:
        box, seen = self.observed()
        ids = box.send_batch([1, 2])
        assert seen == [MessageSent(box.name, id) for id in ids]
        messages = self.take(box, 2)
        seen.clear()
        box.acknowledge_batch(messages)
        assert seen == [MessageAcknowledged(box.name, message.id) for message in messages]

    def test_lost_and_expired_leases(self) -> None:
        box, seen = self.observed()
        self.needs(box, "fenced")
        sent = box.send(1)
        message = self.take_one(box, self.moment)
        self.elapse(self.moment)
        with refused():
            message.acknowledge()
        self.take_one(box)
        assert LeaseLost(box.name, sent) in seen
        assert LeasesExpired(box.name, 1) in seen

    def test_an_answer_hides_no_expired_lease(self) -> None:
        box, seen = self.observed()
        self.needs(box, "fenced")
        box.send(1)
        self.take_one(box, self.moment)
        self.ask(box)
        asked = self.take_one(box)
        self.elapse(self.moment)
        asked.reply("answer")
        self.take_one(box)
        assert LeasesExpired(box.name, 1) in seen

    def test_replies(self) -> None:
        replies = self.mailbox()
        resolver = RegistryResolver({replies.name: replies.raw})
        box, seen = self.observed(reply_resolver=resolver)
        sent = box.send(1, reply_to=replies)
        reply = self.take_one(box).reply("x")
        assert seen[-1] == MessageReplied(box.name, sent, reply)

    def test_awaited_replies(self) -> None:
        box, seen = self.observed()
        reply = self.ask(box)
        message = self.take_one(box)
        seen.clear()
        message.reply("x")
        assert seen == [
            MessageAcknowledged(box.name, message.id),
            MessageReplied(box.name, message.id, reply.id),
        ]

    def test_dropped_messages(self) -> None:
        box, seen = self.observed(default_ttl=self.moment)
        self.fill(box, 1, 2)
        self.elapse(self.moment * 2)
        assert box.receive() == []
        assert sum(event.count for event in seen if isinstance(event, MessagesDropped)) == 2

    def test_nothing_happened_nothing_is_told(self) -> None:
        box, seen = self.observed()
        box.receive()
        box.close()
        assert seen == []
