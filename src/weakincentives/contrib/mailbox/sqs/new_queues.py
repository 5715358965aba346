"""How queues are made that do not exist yet."""

import json
from dataclasses import dataclass, field
from typing import Any

from weakincentives.runtime.mailbox.errors import InvalidParameterError, MailboxResolutionError

from .errors import Place, translated
from .queue_names import QueueUrls, check_queue_name

__all__ = ["NEW_QUEUE_OPTIONS", "NewQueues", "new_queues_of"]

NEW_QUEUE_OPTIONS = ("kms_key", "max_receives", "redrive_to", "retention", "tags")
DEFAULT_RECEIVES, MOST_RECEIVES = 10, 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewQueues:
    """The settings of new queues; SQS's own defaults where there are none."""

    kms_key: str | None = None
    """The id, alias or ARN of the key that encrypts messages."""
    retention: int | None = None
    """Seconds for which SQS keeps a message."""
    tags: dict[str, str] = field(default_factory=dict)
    redrive_to: str | None = None
    """The queue to which SQS moves a message that was received too often; made if missing."""
    max_receives: int = DEFAULT_RECEIVES

    def create(self, client: Any, name: str, prefix: str = "") -> str:
        """Make a queue and return its URL."""
        queue = check_queue_name(name, prefix)
        fifo = queue.endswith(".fifo")
        attributes = {"FifoQueue": "true"} if fifo else {}
        if self.kms_key is not None:
            attributes["KmsMasterKeyId"] = self.kms_key
        if self.retention is not None:
            attributes["MessageRetentionPeriod"] = str(self.retention)
        if self.redrive_to is not None:
            suffix = ".fifo" if fifo and not self.redrive_to.endswith(".fifo") else ""
            target = f"{self.redrive_to}{suffix}"
            if target != name:
                attributes["RedrivePolicy"] = self._redrive_policy(client, target, prefix)
        with translated(Place("queue", queue, client.meta.region_name)):
            made = client.create_queue(
                QueueName=queue,
                Attributes=attributes,
                **({"tags": self.tags} if self.tags else {}),
            )
        return made["QueueUrl"]  # type: ignore[no-any-return]

    def _redrive_policy(self, client: Any, target: str, prefix: str) -> str:
        try:
            url = QueueUrls(client, prefix).find(target)
        except MailboxResolutionError:
            url = self.create(client, target, prefix)
        with translated(Place("queue", prefix + target, client.meta.region_name)):
            answer = client.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arn = answer["Attributes"]["QueueArn"]
        return json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": self.max_receives})


def new_queues_of(options: dict[str, str]) -> NewQueues:
    """Read the options of a URL: ``tags`` are written ``name:value,name:value``."""
    tags = {}
    for tag in options["tags"].split(",") if "tags" in options else ():
        name, colon, value = tag.partition(":")
        if not name or not colon:
            raise InvalidParameterError(f"tags must be name:value,name:value, not {tag!r:.100}")
        tags[name] = value
    return NewQueues(
        kms_key=options.get("kms_key"),
        retention=_whole("retention", options, 60, 14 * 86_400),
        tags=tags,
        redrive_to=options.get("redrive_to"),
        max_receives=_whole("max_receives", options, 1, MOST_RECEIVES) or DEFAULT_RECEIVES,
    )


def _whole(name: str, options: dict[str, str], least: int, most: int) -> int | None:
    if name not in options:
        return None
    value = options[name]
    if not (value.isascii() and value.isdigit() and least <= int(value) <= most):
        raise InvalidParameterError(
            f"{name} must be a whole number from {least} to {most}, not {value!r:.100}"
        )
    return int(value)
