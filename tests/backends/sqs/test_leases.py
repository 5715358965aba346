"""Leases on SQS: what the mailbox refuses by itself, and what SQS refuses."""

from typing import Any

import pytest

from testkit.cloud import Cloud
from weakincentives.contrib.mailbox.sqs.leases import HeldLeases
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox import (
    MailboxConnectionError,
    ReceiptHandleExpiredError,
    RegistryResolver,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.testing import driven

HOUR = 3600


def visibility_of(cloud: Cloud) -> list[int]:
    """Collect the visibility timeouts that are sent from now on."""
    sent: list[int] = []

    def note(params: Any, **_: Any) -> None:
        sent.extend(entry["VisibilityTimeout"] for entry in params["Entries"])

    events = cloud.sqs.meta.events
    events.register("provide-client-params.sqs.ChangeMessageVisibilityBatch", note)
    return sent


def test_a_stale_handle_is_refused_without_asking_sqs(ministack: Cloud) -> None:
    clock = FakeClock()
    box = ministack.mailbox(clock=clock)
    box.send_batch([1, 2, 3])
    acked, nacked, extended = box.receive(max_messages=10, visibility_timeout=30)
    calls = dict(ministack.ledger.calls)
    clock.advance(30)
    with pytest.raises(ReceiptHandleExpiredError):
        acked.acknowledge()
    with pytest.raises(ReceiptHandleExpiredError):
        nacked.nack()
    with pytest.raises(ReceiptHandleExpiredError):
        extended.extend_visibility(30)
    assert dict(ministack.ledger.calls) == calls


def test_a_batch_with_stale_handles_settles_the_rest(ministack: Cloud) -> None:
    clock = FakeClock()
    box = ministack.mailbox(clock=clock)
    box.send_batch([1, 2])
    (late,) = box.receive(visibility_timeout=10)
    (held,) = box.receive(visibility_timeout=60)
    clock.advance(10)
    assert box.acknowledge_batch([late, held]) == [False, True]


def test_a_handle_that_sqs_refuses_is_lost(ministack: Cloud) -> None:
    box = ministack.mailbox()
    box.send(1)
    (message,) = box.receive(wait_time_seconds=5)
    ministack.admin.delete_message(
        QueueUrl=ministack.queue(box.name), ReceiptHandle=message.receipt_handle
    )
    with pytest.raises(ReceiptHandleExpiredError):
        message.extend_visibility(30)


def test_leases_end_at_twelve_hours(ministack: Cloud) -> None:
    clock = FakeClock()
    box = ministack.mailbox(clock=clock)
    box.send_batch([1, 2])
    extended, nacked = box.receive(max_messages=2, visibility_timeout=12 * HOUR)
    sent = visibility_of(ministack)
    clock.advance(11 * HOUR)
    assert extended.extend_visibility(2 * HOUR) is True
    assert nacked.nack(visibility_timeout=12 * HOUR) is True
    assert len(sent) == 2
    assert all(HOUR - 10 <= seconds <= HOUR for seconds in sent)
    clock.advance(HOUR)
    with pytest.raises(ReceiptHandleExpiredError):
        extended.extend_visibility(60)


def test_an_extension_that_sqs_cuts_is_not_believed_in_full(cloud: Cloud) -> None:
    clock = FakeClock()
    box, replies = cloud.mailbox(clock=clock), cloud.mailbox()
    box._resolver = RegistryResolver({replies.name: replies})
    for extend in (
        lambda message: message.extend_visibility(2 * HOUR),
        lambda message: box.extend_batch([message], 2 * HOUR),
    ):
        box.send(1, reply_to=replies)
        (message,) = box.receive(visibility_timeout=12 * HOUR, wait_time_seconds=5)
        clock.advance(11 * HOUR)
        extend(message)
        message.reply("in time")
        clock.advance(HOUR)
        with pytest.raises(ReceiptHandleExpiredError):
            message.reply("too late")


def test_acknowledged_messages_are_known_to_be_although_the_receive_failed(
    ministack: Cloud,
) -> None:
    box = ministack.mailbox()
    box.send(1)
    (message,) = box.receive(wait_time_seconds=5)

    def cut(**_: Any) -> None:
        from botocore.exceptions import EndpointConnectionError

        raise EndpointConnectionError(endpoint_url="http://nowhere")

    ministack.sqs.meta.events.register("before-call.sqs.ReceiveMessage", cut)
    assert box.exchange([message]) == []
    assert message.is_finalized
    with pytest.raises(MailboxConnectionError):
        box.receive()


def test_a_purge_ends_the_leases_here(ministack: Cloud) -> None:
    box = ministack.mailbox()
    box.send(1)
    (message,) = box.receive(wait_time_seconds=5)
    assert box.purge() == 1
    with pytest.raises(ReceiptHandleExpiredError):
        message.acknowledge()


def test_leases_that_ended_unsettled_are_forgotten() -> None:
    held = HeldLeases()
    held.hold(["a", "b"], 0.0, 10.0)
    assert [lease is not None for lease in held.of(["a", "b", "c"], 9.0)] == [True, True, False]
    held.hold(["c"], 100.0, 200.0)
    assert set(held._leases) == {"c"}


def test_what_sqs_cannot_do_is_refused(ministack: Cloud) -> None:
    box = ministack.mailbox()
    with pytest.raises(UnsupportedOperationError):
        box.peek()
    with pytest.raises(UnsupportedOperationError):
        driven(box.store.lease(1, 30, ids=["x"]))
