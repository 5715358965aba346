"""FIFO queues: order within a group, also across a crash, and ids that are known for a while."""

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from testkit.cloud import CREDENTIALS, REGION, Cloud
from weakincentives.contrib.mailbox.sqs import BatchPartlySentError, SQSMailbox
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.testing import driven

from .test_calls import Unlucky


def fifo(cloud: Cloud, **options: Any) -> SQSMailbox[Any, Any]:
    return cloud.mailbox(f"q-{new_id()}.fifo", **options)


def test_told_nothing_the_queue_is_one_group_in_order(ministack: Cloud) -> None:
    box = fifo(ministack)
    assert box.capabilities.ordered
    for n in range(3):
        box.send(n)
    box.send_batch([3, 4])
    (first,) = box.receive(wait_time_seconds=5)
    assert first.body == 0
    assert box.receive() == []
    first.nack()
    messages = box.receive(max_messages=10, wait_time_seconds=5)
    assert [message.body for message in messages] == [0, 1, 2, 3, 4]
    assert messages[0].delivery_count == 2


def test_a_function_of_the_body_names_the_group(ministack: Cloud) -> None:
    box = fifo(ministack, message_group_id=lambda body: body["customer"])
    assert not box.capabilities.ordered
    for n in range(4):
        box.send({"customer": "ab"[n % 2], "n": n})
    (a0,) = box.receive(wait_time_seconds=5)
    (b1,) = box.receive(wait_time_seconds=5)
    assert box.receive() == []
    a0.acknowledge()
    (a2,) = box.receive(wait_time_seconds=5)
    assert [message.body["n"] for message in (a0, b1, a2)] == [0, 1, 2]


def test_a_value_names_the_group_of_all(ministack: Cloud) -> None:
    box = fifo(ministack, message_group_id="everyone")
    box.send(1)
    received = ministack.admin.receive_message(
        QueueUrl=ministack.queue(box.name), AttributeNames=["All"], WaitTimeSeconds=5
    )
    attributes = received["Messages"][0]["Attributes"]
    assert attributes["MessageGroupId"] == "everyone"


@pytest.mark.parametrize("group", ["", " ", "ä", "x" * 129, 7])
def test_bad_groups(ministack: Cloud, group: Any) -> None:
    with pytest.raises(InvalidParameterError, match="message_group_id"):
        fifo(ministack, message_group_id=group)


def groups_of(cloud: Cloud) -> list[str | None]:
    """Collect the groups of messages that are sent from now on."""
    groups: list[str | None] = []

    def note(params: Any, **_: Any) -> None:
        groups.extend(entry.get("MessageGroupId") for entry in params["Entries"])

    cloud.sqs.meta.events.register("provide-client-params.sqs.SendMessageBatch", note)
    return groups


@pytest.mark.parametrize("suffix", ["", ".fifo"])
def test_send_names_the_group(cloud: Cloud, suffix: str) -> None:
    groups = groups_of(cloud)
    box = cloud.mailbox(f"q-{new_id()}{suffix}", message_group_id=lambda body: body.get("customer"))
    box.send({"n": 1}, message_group_id="a")
    asyncio.run(box.send_async({"n": 2}, message_group_id="b"))
    box.send({"n": 3}, attributes={"message_group_id": "c"})
    box.send_batch([{"customer": "d"}, {"n": 5}])
    assert groups == ["a", "b", "c", "d", "wink" if suffix else None]
    messages = []
    while len(messages) < 5:
        messages += box.receive(max_messages=10, wait_time_seconds=5)
    named = [message for message in messages if message.body.get("n") == 1]
    assert [dict(message.attributes) for message in named] == [{"message_group_id": "a"}]
    with pytest.raises(InvalidParameterError, match="message_group_id"):
        box.send({}, message_group_id="with a space")


def test_a_delay_is_refused_with_the_reason(ministack: Cloud) -> None:
    box = fifo(ministack)
    with pytest.raises(InvalidParameterError, match=r"delay_seconds.*FIFO.*DelaySeconds"):
        box.send(1, delay_seconds=5)
    assert box.receive() == []


def test_an_id_is_known_after_the_acknowledgement(ministack: Cloud) -> None:
    box = fifo(ministack)
    box.send("first", message_id="job-1")
    box.receive(wait_time_seconds=5)[0].acknowledge()
    assert box.send("again", message_id="job-1") == "job-1"
    assert box.receive() == []


def test_behind_a_failure_nothing_more_is_sent(ministack: Cloud) -> None:
    url = ministack.queue(f"q-{new_id()}.fifo")
    box: SQSMailbox[Any, Any] = SQSMailbox(url, Unlucky(ministack.sqs, 1, sender_fault=True))
    with pytest.raises(BatchPartlySentError) as caught:
        box.send_batch(list(range(20)))
    sent = [n for n, result in enumerate(caught.value.results) if isinstance(result, str)]
    assert sent == [1, 2, 4, 5, 7, 8]


def test_a_stale_handle_is_refused_by_sqs_itself(ministack: Cloud) -> None:
    box = fifo(ministack)
    box.send(1)
    (late,) = box.receive(visibility_timeout=0)
    (holder,) = box.receive(wait_time_seconds=5)
    # As if this process believed in its lease.
    box.store._held.hold([late.receipt_handle], 0.0, float("inf"))
    assert list(driven(box.store.extend([late.receipt_handle], 60))) == [False]
    assert holder.acknowledge() is True


CRASHER = """
import sys, boto3
from weakincentives.contrib.mailbox import SQSMailbox
url, endpoint, region, key, secret = sys.argv[1:]
client = boto3.client("sqs", region_name=region, endpoint_url=endpoint,
                      aws_access_key_id=key, aws_secret_access_key=secret)
box = SQSMailbox(url, client)
messages = box.receive(max_messages=2, visibility_timeout=5, wait_time_seconds=10)
print([message.body for message in messages], flush=True)
messages[0].acknowledge()
print("working", flush=True)
sys.stdin.read()
"""


def test_order_within_a_group_holds_across_a_crash(ministack: Cloud) -> None:
    box = fifo(ministack)
    box.send_batch(list(range(6)))
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            CRASHER,
            ministack.queue(box.name),
            ministack.endpoint,
            REGION,
            *CREDENTIALS.values(),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "[0, 1]\n"
        assert child.stdout.readline() == "working\n"
        os.kill(child.pid, signal.SIGKILL)
    seen = []
    while len(seen) < 5:
        messages = box.receive(max_messages=10, wait_time_seconds=20)
        seen += [(message.body, message.delivery_count) for message in messages]
        assert all(box.acknowledge_batch(messages))
    assert seen == [(1, 2), (2, 1), (3, 1), (4, 1), (5, 1)]


def test_a_message_with_a_false_header_blocks_nothing(cloud: Cloud) -> None:
    box = fifo(cloud)
    cloud.admin.send_message(
        QueueUrl=cloud.queue(box.name),
        MessageBody="not base64",
        MessageAttributes={"wink": {"DataType": "String", "StringValue": '{"x":"base64"}'}},
        MessageGroupId="wink",
        MessageDeduplicationId=new_id(),
    )
    box.send("behind it")
    payloads = []
    while len(payloads) < 2:  # fauxqs hands out one of a group at a time
        messages = box.receive(max_messages=10, wait_time_seconds=5)
        payloads += [message.payload for message in messages]
        assert all(box.acknowledge_batch(messages))
    assert payloads[0] == b"not base64"
    assert b"behind it" in payloads[1]
