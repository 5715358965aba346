import dataclasses
import inspect

import pytest

from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime.mailbox import InMemoryMailbox, ReceiptHandleExpiredError, events
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
from weakincentives.runtime.mailbox.testing import FakeClock

KINDS = [getattr(events, name) for name in events.__all__]


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_frozen_facts_about_a_mailbox(kind: type[MailboxEvent]) -> None:
    assert issubclass(kind, MailboxEvent)
    assert inspect.getdoc(kind)
    event = kind(*["x"] * len(dataclasses.fields(kind)))
    assert event.mailbox == "x"
    assert not hasattr(event, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        event.mailbox = "y"  # type: ignore[misc]


def test_a_life_as_a_subscriber_sees_it() -> None:
    clock, dispatcher, seen = FakeClock(), InProcessDispatcher(), list[MailboxEvent]()
    dispatcher.subscribe(MailboxEvent, seen.append)
    answers = InMemoryMailbox[str, None]("answers")
    box = InMemoryMailbox[str, str]("x", dispatcher=dispatcher, clock=clock, default_ttl=1000)

    id = box.send("a", reply_to=answers)
    (message,) = box.receive(visibility_timeout=10)
    message.extend_visibility(20)
    reply_id = message.reply("b")
    message.nack(visibility_timeout=5)
    clock.advance(5)
    (message,) = box.receive(visibility_timeout=10)
    clock.advance(10)
    with pytest.raises(ReceiptHandleExpiredError):
        message.acknowledge()
    (message,) = box.receive()
    message.acknowledge()
    box.send("too old", message_id="old")
    clock.advance(1001)
    assert box.receive() == []

    assert seen == [
        MessageSent("x", id),
        MessageReceived("x", id, 1),
        LeaseExtended("x", id, 20),
        MessageReplied("x", id, reply_id),
        MessageNacked("x", id, 5),
        MessageReceived("x", id, 2),
        LeaseLost("x", id),
        LeasesExpired("x", 1),
        MessageReceived("x", id, 3),
        MessageAcknowledged("x", id),
        MessageSent("x", "old"),
        MessagesDropped("x", 1),
    ]
