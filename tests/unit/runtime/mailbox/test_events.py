import asyncio
import dataclasses
import inspect
from typing import Any

import pytest

from weakincentives.dispatch import InProcessDispatcher
from weakincentives.error_text import error_type
from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    MailboxError,
    ReceiptHandleExpiredError,
    RegistryResolver,
    events,
)
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
    MessageSending,
    MessageSent,
    MessagesPurged,
    SendFailed,
)
from weakincentives.runtime.mailbox.testing import FakeClock

KINDS = [getattr(events, name) for name in events.__all__]


@pytest.mark.parametrize("kind", KINDS)
def test_events_are_frozen_facts_about_a_mailbox(kind: type[MailboxEvent]) -> None:
    assert issubclass(kind, MailboxEvent) is (kind is not MessageSending)
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


def observed(name: str = "x", **options: object) -> tuple[InMemoryMailbox[Any, Any], list[Any]]:
    dispatcher, seen = InProcessDispatcher(), list[Any]()
    dispatcher.subscribe(object, seen.append)
    return InMemoryMailbox(name, dispatcher=dispatcher, **options), seen  # type: ignore[arg-type]


def test_a_subscriber_may_add_to_the_attributes_of_what_is_sent() -> None:
    box, _ = observed(serialize=True)
    assert box.dispatcher is not None
    box.dispatcher.subscribe(MessageSending, lambda event: event.attributes.update(trace="t"))
    box.send("a", attributes={"own": "1"})
    box.send_batch(["b", "c"])
    box.send_expecting_reply("d")
    seen = [dict(message.attributes) for message in box.receive(max_messages=4)]
    assert seen == [{"own": "1", "trace": "t"}, *[{"trace": "t"}] * 3]


def test_a_subscriber_cannot_make_a_send_fail() -> None:
    box, seen = observed(serialize=True)

    def spoil(event: MessageSending) -> None:
        event.attributes.update({"number": 1, 2: "text", "own": None})  # type: ignore[dict-item]
        raise RuntimeError("a broken subscriber")

    assert box.dispatcher is not None
    box.dispatcher.subscribe(MessageSending, spoil)
    given = {"own": "1"}
    box.send("a", attributes=given)
    assert box.receive()[0].attributes == given == {"own": "1"}
    assert MessageSent in map(type, seen)


def test_nothing_is_added_where_nobody_is_subscribed() -> None:
    dispatcher = InProcessDispatcher()
    dispatcher.subscribe(MailboxEvent, lambda event: None)
    box = InMemoryMailbox[str, None]("x", dispatcher=dispatcher)
    box.send("a")
    (message,) = box.receive()
    assert message._envelope.attributes is None


def test_a_batch_is_announced_once() -> None:
    box, seen = observed()
    ids = box.send_batch(["a", "b"])
    assert seen == [MessageSending("x", tuple(ids), {}), *(MessageSent("x", id) for id in ids)]
    seen.clear()
    assert box.send_batch([]) == []
    assert seen == []


@pytest.mark.parametrize("body", ["too many", object()])
def test_a_failed_send_is_told(body: object) -> None:
    box, seen = observed(max_size=1, serialize=True)
    box.send("first")
    for send in (
        box.send,
        lambda body: box.send_batch([body]),
        lambda body: box.send_expecting_reply(body),
        lambda body: asyncio.run(box.send_async(body)),
    ):
        seen.clear()
        with pytest.raises(MailboxError) as caught:
            send(body)
        sending, failed = seen
        assert isinstance(sending, MessageSending)
        assert failed == SendFailed("x", sending.message_ids, error_type(caught.value))


def test_the_wait_in_the_queue_is_told_at_the_first_delivery() -> None:
    clock = FakeClock()
    box, seen = observed(clock=clock)
    box.send("a", attributes={"k": "v"}, delay_seconds=2)
    clock.advance(5)
    box.receive()[0].nack()
    box.receive()
    first, second = (event for event in seen if isinstance(event, MessageReceived))
    assert (first.waited, first.attributes) == (5, {"k": "v"})
    assert second.waited is None


def test_an_answer_names_the_message_that_it_answers() -> None:
    answers, seen = observed("answers")
    box = InMemoryMailbox[str, str]("x")
    box.send("a", reply_to=answers)
    (message,) = box.receive()
    message.reply("b")
    asyncio.run(message.reply_async("c"))
    causes = [event.cause for event in seen if isinstance(event, MessageSending)]
    assert causes == [message, message]
    answers.send("d")
    assert seen[-2] == MessageSending("answers", seen[-2].message_ids, {}, None)


def test_a_mailbox_that_is_found_by_name_has_the_same_dispatcher() -> None:
    answers = InMemoryMailbox[Any, None]("answers")
    box, seen = observed(reply_resolver=RegistryResolver({"answers": answers}))
    assert box._resolve("answers") is answers
    answers.send("a")
    assert [event.mailbox for event in seen] == ["answers", "answers"]


def test_a_purge_is_told() -> None:
    box, seen = observed()
    box.purge()
    assert seen == []
    box.send_batch(["a", "b"])
    seen.clear()
    box.purge()
    box.send("c")
    asyncio.run(box.purge_async())
    assert [event for event in seen if isinstance(event, MessagesPurged)] == [
        MessagesPurged("x", 2),
        MessagesPurged("x", 1),
    ]
