"""SQS: mailboxes beside plain boto3 on the same emulator, in the same run."""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.harness import Row, compare, report, timed
from testkit.cloud import Cloud
from testkit.servers.aws import MINISTACK, Unavailable, running
from weakincentives.contrib.mailbox.sqs import SQSMailbox
from weakincentives.runtime import Worker, WorkerConfig

COUNT = 100
TEN = 10
BODY = {"key": "v" * 188}


def rows() -> Iterator[Row]:
    """Measure the SQS column."""
    with tempfile.TemporaryDirectory() as scratch:
        try:
            with running(MINISTACK, Path(scratch)) as endpoint:
                yield from ratios(Cloud(endpoint))
        except Unavailable as error:
            print(f"  {error}: nothing was measured")


def ratios(cloud: Cloud) -> Iterator[Row]:
    box, plain = cloud.mailbox(), Plain(cloud)
    yield compare("send, one at a time", rate(lambda: box.send(BODY)), rate(plain.send), 0.9)
    yield compare(
        "send, ten at a time",
        rate(lambda: box.send_batch([BODY] * TEN), TEN),
        rate(plain.send_ten, TEN),
        1.0,
    )
    for _ in range(2 * COUNT):
        box.send_batch([BODY] * TEN)
        plain.send_ten()
    one, ten = rate(lambda: plain.consume(1)), rate(lambda: plain.consume(TEN), TEN)
    yield compare("consume, one at a time", rate(lambda: consume(box, 1)), one, 0.9)
    yield compare("consume, ten at a time", rate(lambda: consume(box, TEN), TEN), ten, 1.0)
    yield compare("consume in a Worker", served(box, 1), one, 0.9)
    yield compare("consume in a Worker, batch=10", served(box, TEN), ten, 0.9)


class Plain:
    """The loop that one would write by hand."""

    def __init__(self, cloud: Cloud) -> None:
        self._sqs, self._url = cloud.sqs, cloud.queue()

    def send(self) -> None:
        self._sqs.send_message(QueueUrl=self._url, MessageBody=json.dumps(BODY))

    def send_ten(self) -> None:
        entries = [{"Id": str(n), "MessageBody": json.dumps(BODY)} for n in range(TEN)]
        self._sqs.send_message_batch(QueueUrl=self._url, Entries=entries)

    def consume(self, count: int) -> None:
        found = self._sqs.receive_message(
            QueueUrl=self._url, MaxNumberOfMessages=count, WaitTimeSeconds=20
        )["Messages"]
        assert all(json.loads(message["Body"]) == BODY for message in found)
        if count == 1:
            handle = found[0]["ReceiptHandle"]
            self._sqs.delete_message(QueueUrl=self._url, ReceiptHandle=handle)
            return
        handles = [message["ReceiptHandle"] for message in found]
        entries = [{"Id": str(n), "ReceiptHandle": handle} for n, handle in enumerate(handles)]
        self._sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)


def consume(box: SQSMailbox[Any, Any], count: int) -> None:
    messages = box.receive(max_messages=count, wait_time_seconds=20)
    assert all(message.body == BODY for message in messages)
    box.acknowledge_batch(messages)


def rate(step: Callable[[], object], worth: int = 1) -> Callable[[], float]:
    """Return a function that measures how many messages a second a step is good for."""
    times = COUNT // worth

    def run() -> float:
        return times * worth / timed(lambda: [step() for _ in range(times)])

    return run


def served(box: SQSMailbox[Any, Any], batch: int) -> Callable[[], float]:
    """Return how many messages a second a loop with an empty handler serves."""
    worker = Worker(box, lambda body: None, config=WorkerConfig(batch=batch))

    def run() -> float:
        looks = COUNT // batch
        return COUNT / timed(lambda: worker.run(max_iterations=looks, wait_time_seconds=20))

    return run


if __name__ == "__main__":
    report("sqs", rows())
    sys.exit(0)
