import asyncio
import time

import pytest

from weakincentives.contrib.mailbox import testing as specified_place
from weakincentives.runtime.mailbox import (
    CollectingMailbox,
    FakeMailbox,
    ImmediateReply,
    MailboxConnectionError,
    NullMailbox,
    ReceiptHandleExpiredError,
    Reply,
    ReplyCancelledError,
    ReplyTimeoutError,
    testing,
)
from weakincentives.runtime.worker import testing as jobs


def test_both_places_have_the_same_doubles() -> None:
    assert set(specified_place.__all__) == {*testing.__all__, *jobs.__all__}
    for name in jobs.__all__:
        assert getattr(specified_place, name) is getattr(jobs, name)
    for name in testing.__all__:
        assert getattr(specified_place, name) is getattr(testing, name)


def test_a_fake_mailbox_fails_in_everything_while_told_to() -> None:
    box = FakeMailbox[str, str]()
    box.send("a")
    (message,) = box.receive()
    box.set_connection_error(MailboxConnectionError("down"))
    for operation in (
        lambda: box.send("b"),
        lambda: box.send_batch(["b"]),
        lambda: box.send_expecting_reply("b"),
        box.receive,
        box.stats,
        box.approximate_count,
        box.peek,
        box.purge,
        message.acknowledge,
        message.nack,
        lambda: message.extend_visibility(30),
        lambda: box.acknowledge_batch([message]),
    ):
        with pytest.raises(MailboxConnectionError, match="down"):
            operation()
    box.set_connection_error(None)
    assert box.approximate_count() == 1
    assert message.acknowledge()


def test_a_fake_mailbox_ends_a_lease_when_told_to() -> None:
    box = FakeMailbox[str, str]()
    box.send("a")
    (message,) = box.receive()
    box.expire_handle(message.receipt_handle)
    box.expire_handle("unknown")
    (again,) = box.receive()
    assert again.delivery_count == 2
    with pytest.raises(ReceiptHandleExpiredError):
        message.acknowledge()
    assert again.acknowledge()


def test_the_time_of_a_fake_mailbox_is_moved_by_hand() -> None:
    box = FakeMailbox[str, str]()
    box.send("a", delay_seconds=900)
    reply = box.send_expecting_reply("b", reply_timeout=60)
    assert [message.body for message in box.receive(max_messages=5, visibility_timeout=60)] == ["b"]
    box.advance(900)
    assert [message.body for message in box.receive(max_messages=5)] == ["b", "a"]
    with pytest.raises(ReplyTimeoutError, match="expired"):
        reply.wait(timeout=0)


def test_a_null_mailbox_drops_and_never_replies() -> None:
    box = NullMailbox[str, str]()
    assert box.send("a")
    assert len(box.send_batch(["a", "b"])) == 2
    reply = box.send_expecting_reply("a")
    assert (box.receive(), box.approximate_count(), reply.is_ready()) == ([], 0, False)
    started = time.monotonic()
    with pytest.raises(ReplyTimeoutError):
        reply.wait(timeout=0)
    with pytest.raises(ReplyTimeoutError):
        reply.wait()  # which would wait for 300 s
    with pytest.raises(ReplyTimeoutError):
        asyncio.run(reply.wait_async())
    assert time.monotonic() - started < 30
    assert reply.poll() is None
    assert reply.cancel()
    with pytest.raises(ReplyCancelledError):
        reply.wait()


def test_a_collecting_mailbox_remembers_in_order_and_works() -> None:
    box = CollectingMailbox[str, str]()
    box.send("a")
    box.send_batch(["b", "c"])
    box.purge()
    box.send("d")
    assert box.sent == ["a", "b", "c", "d"]
    assert [message.body for message in box.receive(max_messages=5)] == ["d"]


def test_an_immediate_reply_is_there() -> None:
    reply: Reply[int] = ImmediateReply(7)
    assert (reply.wait(), reply.poll(), reply.is_ready()) == (7, 7, True)
    assert (reply.cancel(), reply.is_cancelled()) == (False, False)
