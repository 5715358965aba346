"""Looks for what will hurt in the attributes of SQS queues and of the reply table."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from weakincentives.contrib.mailbox.finding import Finding
from weakincentives.runtime.mailbox import MailboxError

from .backend import SQSBackend
from .errors import Place, translated

__all__ = ["findings"]

ONE_DAY = 86_400
FEW_RECEIVES = 6
"""Fewer than one more than the five deliveries after which a `DLQPolicy` gives up a message."""
USUAL_BYTES = 262_144


def findings(
    backend: SQSBackend, url: str, queues: Callable[[], Sequence[str]]
) -> Iterator[Finding]:
    """Yield what will hurt."""
    found: dict[str, Mapping[str, str]] = {}
    for queue in queues():
        found[queue] = _attributes(backend, queue)
    by_arn = {attributes.get("QueueArn", ""): attributes for attributes in found.values()}
    for queue, attributes in found.items():
        yield from _of_queue(queue, attributes)
        yield from _of_redrive(backend, queue, attributes, by_arn)


def _attributes(backend: SQSBackend, queue: str) -> Mapping[str, str]:
    with translated(Place("queue", queue, backend._sqs.meta.region_name)):
        answer = backend._sqs.get_queue_attributes(
            QueueUrl=backend._urls.find(queue), AttributeNames=["All"]
        )
    attributes: Mapping[str, str] = answer.get("Attributes", {})
    return attributes


def _of_queue(queue: str, attributes: Mapping[str, str]) -> Iterator[Finding]:
    kept = int(attributes.get("MessageRetentionPeriod", ONE_DAY))
    if kept < ONE_DAY:
        yield Finding(
            "warning",
            "messages that wait are deleted soon",
            f"{queue}: MessageRetentionPeriod is {kept} s",
            "set it longer than the longest outage of your workers; 4 days is the default",
        )
    if int(attributes.get("VisibilityTimeout", 30)) == 0:
        yield Finding(
            "warning",
            "a consumer that sets no lease of its own shares each message with all others",
            f"{queue}: VisibilityTimeout is 0",
            "set it longer than a handler takes; 30 s is the default",
        )
    if int(attributes.get("DelaySeconds", 0)) > 0:
        yield Finding(
            "warning",
            "every message waits before it can be received",
            f"{queue}: DelaySeconds is {attributes['DelaySeconds']}",
            "set it to 0, and use delay_seconds= for the messages that should wait",
        )
    size = int(attributes.get("MaximumMessageSize", USUAL_BYTES))
    if size < USUAL_BYTES:
        yield Finding(
            "warning",
            "messages and dead letters of usual sizes are refused",
            f"{queue}: MaximumMessageSize is {size:,}",
            f"set it to {USUAL_BYTES:,} or more, or pass max_bytes={size} in the URL",
        )


def _of_redrive(
    backend: SQSBackend,
    queue: str,
    attributes: Mapping[str, str],
    by_arn: Mapping[str, Mapping[str, str]],
) -> Iterator[Finding]:
    try:
        policy: Any = json.loads(attributes.get("RedrivePolicy", "{}"))
    except ValueError:
        return
    target, most = policy.get("deadLetterTargetArn"), int(policy.get("maxReceiveCount", 0))
    if not target:
        return
    if most < FEW_RECEIVES:
        yield Finding(
            "warning",
            "SQS takes messages away before your DLQPolicy can make dead letters of them",
            f"{queue}: maxReceiveCount is {most}",
            "set it above max_delivery_count, such as 10; on a queue of dead letters, remove it",
        )
    there = by_arn.get(target)
    if there is None:
        there = _target(backend, target)
    if there is None:
        yield Finding(
            "error",
            "messages that are received too often have nowhere to go",
            f"{queue}: its redrive queue {target.rpartition(':')[2]} does not exist",
            "create that queue, or remove the redrive policy",
        )
    elif int(there.get("MessageRetentionPeriod", 0)) <= int(
        attributes.get("MessageRetentionPeriod", 0)
    ):
        yield Finding(
            "warning",
            "messages may be deleted soon after SQS has moved them: their age counts on",
            f"{target.rpartition(':')[2]} keeps messages no longer than {queue} does",
            "set its MessageRetentionPeriod to 14 days (1209600)",
        )


def _target(backend: SQSBackend, arn: str) -> Mapping[str, str] | None:
    """Return the attributes of a queue that has another prefix; None if there is none."""
    name = arn.rpartition(":")[2]
    with_prefix = backend._prefix
    if with_prefix and not name.startswith(with_prefix):
        return {"MessageRetentionPeriod": "1209600"}  # outside of what this URL may look at
    try:
        return _attributes(backend, name.removeprefix(with_prefix))
    except MailboxError:
        return None
