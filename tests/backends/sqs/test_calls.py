"""How many API calls things cost, and what happens to entries that fail."""

import asyncio
import threading
import time
from typing import Any

import pytest
from botocore.config import Config
from botocore.exceptions import EndpointConnectionError

from testkit.cloud import Cloud
from weakincentives.contrib.mailbox.sqs import BatchPartlySentError, SQSMailbox
from weakincentives.contrib.mailbox.sqs.batch_calls import batches
from weakincentives.contrib.mailbox.sqs.long_polls import poll_seconds
from weakincentives.dispatch import InProcessDispatcher
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxConnectionError,
    PayloadTooLargeError,
    ReceiptHandleExpiredError,
)
from weakincentives.runtime.mailbox.events import MailboxEvent, MessageSent, SendFailed


def drain(box: SQSMailbox[Any, Any]) -> list[Any]:
    bodies = []
    while messages := box.receive(max_messages=10):
        bodies += [message.body for message in messages]
        box.acknowledge_batch(messages)
    return bodies


class Unlucky:
    """A client whose batch calls leave some entries out and say that they failed."""

    def __init__(
        self, client: Any, times: int, *, code: str = "InternalError", sender_fault: bool = False
    ) -> None:
        self._client = client
        self._times = times
        self._code = code
        self._sender_fault = sender_fault

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if not name.endswith("_batch"):
            return method

        def call(*, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
            unlucky = [e for e in Entries if self._times > 0 and int(e["Id"]) % 3 == 0]
            lucky = [entry for entry in Entries if entry not in unlucky]
            self._times -= 1
            answer = method(QueueUrl=QueueUrl, Entries=lucky) if lucky else {}
            failed = [
                {"Id": e["Id"], "SenderFault": self._sender_fault, "Code": self._code}
                for e in unlucky
            ]
            return {**answer, "Failed": failed}

        return call


class Lost:
    """A client whose connection is lost after so many batches were sent."""

    def __init__(self, client: Any, *, after: int) -> None:
        self._client = client
        self._left = after

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send_message_batch(self, **request: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise EndpointConnectionError(endpoint_url="http://gone")
        return self._client.send_message_batch(**request)


def test_a_hundred_messages_cost_ten_calls_to_send_and_twenty_one_to_consume(
    ministack: Cloud,
) -> None:
    box = ministack.mailbox()
    calls = ministack.ledger.calls
    box.send_batch(list(range(100)))
    assert dict(calls) == {"SendMessageBatch": 10}
    calls.clear()
    bodies = []
    while len(bodies) < 100:
        messages = box.receive(max_messages=10, wait_time_seconds=20)
        bodies += [message.body for message in messages]
        assert all(box.acknowledge_batch(messages))
    assert sorted(bodies) == list(range(100))
    # And one that makes the first leases as long as they should be: the queue may have been empty.
    assert calls.total() <= 21


def test_an_exchange_is_two_calls(ministack: Cloud) -> None:
    box = ministack.mailbox()
    box.send_batch([1, 2])
    first = box.receive()
    ministack.ledger.calls.clear()
    box.exchange(first, wait_time_seconds=20)
    assert dict(ministack.ledger.calls) == {"DeleteMessageBatch": 1, "ReceiveMessage": 1}


def test_an_idle_long_poll_is_one_call(ministack: Cloud) -> None:
    box = ministack.mailbox()
    started = time.monotonic()
    assert box.receive(wait_time_seconds=2) == []
    assert time.monotonic() - started > 1.9
    assert dict(ministack.ledger.calls) == {"ReceiveMessage": 1}
    assert box.store.look_interval == 20


def test_a_wait_beyond_what_sqs_waits_is_refused(ministack: Cloud) -> None:
    box = ministack.mailbox()
    with pytest.raises(InvalidParameterError, match=r"wait_time_seconds .* from 0 to 20"):
        box.receive(wait_time_seconds=21)
    assert not ministack.ledger.calls


def test_polls_heed_the_clients_patience(ministack: Cloud) -> None:
    hasty = ministack.client("sqs", config=Config(read_timeout=2))
    ministack.ledger.watch(hasty)
    box: SQSMailbox[Any, Any] = SQSMailbox(ministack.queue(), hasty)
    assert box.receive(wait_time_seconds=3) == []
    # Three of a second each, or fewer if the machine is slow; one alone would exceed the patience.
    assert ministack.ledger.calls["ReceiveMessage"] in (2, 3)


@pytest.mark.parametrize(
    ("wait", "seconds"), [(0.5, 1), (0.9, 1), (1.4, 1), (19.99, 20), (20, 20), (90, 20)]
)
def test_sqs_waits_whole_seconds(wait: float, seconds: int) -> None:
    assert poll_seconds(wait, 20) == seconds


def test_batches_are_cut_by_count_and_size_and_keep_the_order() -> None:
    assert [len(batch) for batch in batches([1] * 25, 100)] == [10, 10, 5]
    assert list(batches([60, 30, 20, 100, 1], 100)) == [[0, 1], [2], [3], [4]]
    assert list(batches([], 100)) == []


def test_a_batch_larger_than_one_call_takes_is_split(ministack: Cloud) -> None:
    box = ministack.mailbox()
    bodies = [f"{n}" * 300_000 for n in range(5)]
    box.send_batch(bodies)
    assert ministack.ledger.calls["SendMessageBatch"] == 2
    assert sorted(drain(box)) == bodies


def test_entries_that_failed_for_want_of_luck_are_sent_again(ministack: Cloud) -> None:
    box: SQSMailbox[Any, Any] = SQSMailbox(ministack.queue(), Unlucky(ministack.sqs, 2))
    ids = box.send_batch(list(range(10)))
    messages = box.receive(max_messages=10, wait_time_seconds=5)
    assert {message.id for message in messages} == set(ids)
    assert sorted(message.body for message in messages) == list(range(10))


def test_entries_that_keep_failing_are_reported_one_by_one(ministack: Cloud) -> None:
    box: SQSMailbox[Any, Any] = SQSMailbox(ministack.queue(), Unlucky(ministack.sqs, 4))
    with pytest.raises(BatchPartlySentError, match="4 of 10") as caught:
        box.send_batch(list(range(10)))
    results = caught.value.results
    failed = [n for n, result in enumerate(results) if isinstance(result, MailboxConnectionError)]
    assert failed == [0, 3, 6, 9]
    assert list(caught.value.sent_ids) == [result for result in results if isinstance(result, str)]
    assert sorted(drain(box)) == [1, 2, 4, 5, 7, 8]


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_what_was_sent_before_an_outage_is_reported_as_sent(ministack: Cloud, suffix: str) -> None:
    box: SQSMailbox[Any, Any] = SQSMailbox(
        ministack.queue(f"q-{new_id()}{suffix}"), Unlucky(Lost(ministack.sqs, after=1), 1)
    )
    told: list[Any] = []
    box.dispatcher = InProcessDispatcher()
    box.dispatcher.subscribe(MailboxEvent, told.append)
    with pytest.raises(BatchPartlySentError) as caught:
        box.send_batch([0, 1, 2])
    unsent, *sent = caught.value.results
    assert isinstance(unsent, MailboxConnectionError)
    assert caught.value.sent_ids == tuple(sent)
    assert [event.message_id for event in told if isinstance(event, MessageSent)] == sent
    (failed,) = [event.message_ids for event in told if isinstance(event, SendFailed)]
    assert len(failed) == 1
    assert sorted(drain(box)) == [1, 2]


def test_after_an_outage_the_rest_of_a_batch_is_not_tried(ministack: Cloud) -> None:
    box: SQSMailbox[Any, Any] = SQSMailbox(ministack.queue(), Unlucky(ministack.sqs, 4))
    with pytest.raises(BatchPartlySentError) as caught:
        box.send_batch(list(range(30)))
    assert sum(isinstance(result, str) for result in caught.value.results) == 6
    assert sorted(drain(box)) == [1, 2, 4, 5, 7, 8]


def test_a_single_message_that_keeps_failing_is_its_own_error(ministack: Cloud) -> None:
    box: SQSMailbox[Any, Any] = SQSMailbox(ministack.queue(), Unlucky(ministack.sqs, 4))
    with pytest.raises(MailboxConnectionError, match="InternalError"):
        box.send("alone")
    assert drain(box) == []


def test_settlements_are_tried_again_and_an_outage_is_no_lost_lease(ministack: Cloud) -> None:
    url = ministack.queue()
    SQSMailbox[Any, Any](url, ministack.sqs).send_batch(list(range(10)))
    box: SQSMailbox[Any, Any] = SQSMailbox(url, Unlucky(ministack.sqs, 5))
    messages = box.receive(max_messages=10)
    with pytest.raises(MailboxConnectionError):
        box.acknowledge_batch(messages)
    assert box.acknowledge_batch(messages) == [True] * 10
    assert box.receive() == []


@pytest.mark.parametrize(
    "code", ["ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"]
)
def test_a_handle_that_sqs_refuses_is_a_lost_lease(ministack: Cloud, code: str) -> None:
    message = held(ministack, Unlucky(ministack.sqs, 1, code=code, sender_fault=True))
    with pytest.raises(ReceiptHandleExpiredError):
        message.acknowledge()


@pytest.mark.parametrize(
    ("code", "times"),
    [
        ("AccessDenied", 1),
        ("KmsAccessDenied", 1),
        ("AWS.SimpleQueueService.KmsThrottled", 4),
        ("KmsThrottled", 4),
    ],
)
def test_a_settlement_that_fails_otherwise_is_no_lost_lease(
    cloud: Cloud, code: str, times: int
) -> None:
    message = held(cloud, Unlucky(cloud.sqs, times, code=code, sender_fault=True))
    with pytest.raises(MailboxConnectionError, match=code):
        message.acknowledge()
    assert message.acknowledge() is True


def held(cloud: Cloud, client: Any) -> Any:
    """Receive a message with this client."""
    url = cloud.queue()
    SQSMailbox[Any, Any](url, cloud.sqs).send(1)
    (message,) = SQSMailbox[Any, Any](url, client).receive()
    return message


def test_the_queues_own_delay_counts_unless_a_message_has_one(cloud: Cloud) -> None:
    asked: list[list[int | None]] = []

    def note(params: Any, **_: Any) -> None:
        asked.append([entry.get("DelaySeconds") for entry in params["Entries"]])

    cloud.sqs.meta.events.register("provide-client-params.sqs.SendMessageBatch", note)
    box: SQSMailbox[Any, Any] = SQSMailbox(cloud.queue(DelaySeconds="900"), cloud.sqs)
    box.send("later")
    box.send("sooner", delay_seconds=1)
    assert asked == [[None], [1]]
    assert [message.body for message in box.receive(wait_time_seconds=20)] == ["sooner"]


def test_an_event_loop_makes_as_many_calls_at_once_as_there_are_connections(
    ministack: Cloud,
) -> None:
    url, together = ministack.queue(), threading.Barrier(40)

    class Gathering:
        def __getattr__(self, name: str) -> Any:
            return getattr(ministack.sqs, name)

        def send_message_batch(self, **request: Any) -> Any:
            together.wait(60)
            return ministack.sqs.send_message_batch(**request)

    box: SQSMailbox[Any, Any] = SQSMailbox(url, Gathering())

    async def main() -> None:
        await asyncio.gather(*(box.send_async(n) for n in range(40)))

    asyncio.run(main())
    assert sorted(drain(box)) == list(range(40))


def test_the_queues_own_limit_is_asked_for_and_kept_to(ministack: Cloud) -> None:
    url = ministack.queue(MaximumMessageSize="2048")
    box: SQSMailbox[Any, Any] = SQSMailbox(url, ministack.sqs)
    box.send("small")
    assert "GetQueueAttributes" not in ministack.ledger.calls
    with pytest.raises(PayloadTooLargeError, match="2048"):
        box.send_batch(["fits", "x" * 2048])
    assert drain(box) == ["small"]
    ministack.admin.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "65536"})
    box.send("x" * 2048)
    ministack.admin.set_queue_attributes(QueueUrl=url, Attributes={"MaximumMessageSize": "1024"})
    with pytest.raises(PayloadTooLargeError, match="1024"):
        box.send("x" * 2048)
