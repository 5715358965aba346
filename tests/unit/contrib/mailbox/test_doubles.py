"""The test doubles behave as their users' tests rely on."""

import asyncio
import subprocess
import sys
import threading
from dataclasses import dataclass

import pytest

from weakincentives.contrib.mailbox.testing import (
    CollectingMailbox,
    FakeMailbox,
    ImmediateReply,
    NullMailbox,
)
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Mailbox,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxFullError,
    ReceiptHandleExpiredError,
    ReplyCancelledError,
    ReplyTimeoutError,
)


@dataclass(frozen=True)
class Event:
    type: str


class TestNullMailbox:
    def test_drops_what_is_sent(self) -> None:
        mailbox: Mailbox[Event, None] = NullMailbox()
        assert mailbox.send(Event("a"))
        assert len(mailbox.send_batch([Event("b"), Event("c")])) == 2
        assert mailbox.receive() == []
        assert mailbox.approximate_count() == 0

    def test_a_reply_never_comes(self) -> None:
        reply = NullMailbox[str, str]().send_expecting_reply("hello?")
        assert reply.poll() is None
        with pytest.raises(ReplyTimeoutError):
            reply.wait(timeout=0)
        assert reply.cancel() is True
        with pytest.raises(ReplyCancelledError):
            reply.wait()

    def test_checks_its_input_like_any_other(self) -> None:
        with pytest.raises(InvalidParameterError):
            NullMailbox().send(1, delay_seconds=-1)

    def test_closes_like_any_other(self) -> None:
        mailbox: NullMailbox[int] = NullMailbox("drain")
        mailbox.close()
        with pytest.raises(MailboxClosedError):
            mailbox.send(1)


class TestCollectingMailbox:
    def test_keeps_what_was_sent_in_order(self) -> None:
        mailbox: CollectingMailbox[Event] = CollectingMailbox()
        mailbox.send(Event("a"))
        mailbox.send_batch([Event("b"), Event("c")], delay_seconds=60)
        assert [event.type for event in mailbox.sent] == ["a", "b", "c"]

    def test_still_delivers(self) -> None:
        mailbox: CollectingMailbox[int] = CollectingMailbox("inbox")
        mailbox.send(1)
        (message,) = mailbox.receive()
        assert message.acknowledge() is True
        assert (mailbox.sent, mailbox.approximate_count()) == ([1], 0)

    def test_collects_replies(self) -> None:
        replies: CollectingMailbox[str] = CollectingMailbox("replies")
        requests: FakeMailbox[str, str] = FakeMailbox("requests")
        requests.send("work", reply_to=replies)
        (message,) = requests.receive()
        message.reply("half")
        message.reply("done")
        assert replies.sent == ["half", "done"]


class TestFakeMailbox:
    def test_an_expired_handle_is_refused_and_its_message_visible(self) -> None:
        mailbox: FakeMailbox[Event] = FakeMailbox()
        mailbox.send(Event("a"))
        message = mailbox.receive()[0]
        mailbox.expire_handle(message.receipt_handle)
        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        (again,) = mailbox.receive()
        assert again.delivery_count == 2
        mailbox.expire_handle(message.receipt_handle)
        assert again.acknowledge() is True

    def test_an_expired_handle_refuses_each_settlement(self) -> None:
        mailbox: FakeMailbox[int] = FakeMailbox()
        mailbox.send_batch([1, 2])
        nacked, extended = mailbox.receive(max_messages=2)
        for message in (nacked, extended):
            mailbox.expire_handle(message.receipt_handle)
        with pytest.raises(ReceiptHandleExpiredError):
            nacked.nack()
        with pytest.raises(ReceiptHandleExpiredError):
            extended.extend_visibility(30)

    def test_a_connection_error_until_it_is_cleared(self) -> None:
        mailbox: FakeMailbox[int, int] = FakeMailbox()
        mailbox.send(1)
        (message,) = mailbox.receive()
        mailbox.set_connection_error(MailboxConnectionError("Redis down"))
        for call in (
            lambda: mailbox.send(2),
            lambda: mailbox.send_batch([2]),
            lambda: mailbox.send_expecting_reply(2),
            mailbox.receive,
            lambda: mailbox.receive(wait_time_seconds=5),
            message.acknowledge,
            message.nack,
            lambda: message.extend_visibility(30),
            lambda: mailbox.acknowledge_batch([message]),
            mailbox.purge,
            mailbox.peek,
            mailbox.stats,
            mailbox.approximate_count,
        ):
            with pytest.raises(MailboxConnectionError, match="Redis down"):
                call()
        mailbox.set_connection_error(None)
        assert message.acknowledge() is True
        assert mailbox.approximate_count() == 0

    def test_its_clock_ends_leases_and_delays(self) -> None:
        mailbox: FakeMailbox[str] = FakeMailbox()
        mailbox.send("later", delay_seconds=100)
        mailbox.send("now")
        (message,) = mailbox.receive(visibility_timeout=300)
        mailbox.advance(99)
        assert mailbox.receive() == []
        mailbox.advance(1)
        assert [m.body for m in mailbox.receive(visibility_timeout=1000)] == ["later"]
        mailbox.advance(200)
        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        assert [m.body for m in mailbox.receive()] == ["now"]

    def test_its_clock_wakes_a_blocked_consumer(self) -> None:
        mailbox: FakeMailbox[str] = FakeMailbox()
        mailbox.send("in an hour", delay_seconds=3600)
        received: list[object] = []
        thread = threading.Thread(
            target=lambda: received.extend(mailbox.receive(wait_time_seconds=20))
        )
        thread.start()
        mailbox.advance(3600)
        thread.join(120)
        assert len(received) == 1

    def test_its_clock_ends_a_wait_for_a_reply(self) -> None:
        mailbox: FakeMailbox[str, str] = FakeMailbox()
        reply = mailbox.send_expecting_reply("hello?", reply_timeout=3600)
        errors: list[BaseException] = []

        def wait() -> None:
            try:
                reply.wait()
            except ReplyTimeoutError as error:
                errors.append(error)

        thread = threading.Thread(target=wait)
        thread.start()
        mailbox.advance(3601)
        thread.join(120)
        assert len(errors) == 1

    def test_takes_a_maximum_size(self) -> None:
        mailbox: FakeMailbox[int] = FakeMailbox("small", max_size=1)
        mailbox.send(1)
        with pytest.raises(MailboxFullError):
            mailbox.send(2)


class TestImmediateReply:
    def test_is_there_from_the_start(self) -> None:
        reply = ImmediateReply(42)
        assert (reply.wait(), reply.poll(), reply.is_ready()) == (42, 42, True)
        assert reply.wait(timeout=0) == 42
        assert asyncio.run(reply.wait_async()) == 42
        assert reply.id != ImmediateReply(42).id

    def test_cannot_be_cancelled_any_more(self) -> None:
        reply = ImmediateReply("x")
        assert reply.cancel() is False
        assert reply.is_cancelled() is False
        assert reply.wait() == "x"


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("missing", ["pytest", "hypothesis"])
def test_the_doubles_need_no_test_tools_and_the_contract_says_what_it_needs(missing: str) -> None:
    without = f"import sys; sys.modules[{missing!r}] = None; "
    doubles = run(without + "import weakincentives.contrib.mailbox.testing")
    assert doubles.returncode == 0, doubles.stderr
    contract = run(without + "import weakincentives.contrib.mailbox.contract")
    assert contract.returncode == 1
    assert f"the contract suite needs {missing}: pip install" in contract.stderr
