"""The backend of ``sqs://region``: queues on SQS and, if a table is named, replies on DynamoDB."""

from collections.abc import Sequence
from typing import Any, Self
from urllib.parse import SplitResult, parse_qs

import boto3
from botocore.config import Config

from weakincentives.contrib.mailbox.urls import redacted
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxResolutionError,
    MailboxResolver,
    UnsupportedOperationError,
)

from .errors import Place, translated
from .mailbox import SQSMailbox
from .queues import check_queue_name, find_queue
from .replies import DynamoDBReplyStore

__all__ = ["SQSBackend", "open_backend"]

OPTIONS = {"create", "endpoint", "prefix", "replies"}

# Above the twenty seconds of a long poll, and a connection for each poll and a few.
CLIENT = Config(
    retries={"mode": "adaptive", "max_attempts": 6},
    connect_timeout=5,
    read_timeout=30,
    max_pool_connections=50,
)


class SQSBackend:
    """Queues of one account and region; names have ``prefix`` put before them."""

    def __init__(
        self,
        sqs: Any,
        replies: DynamoDBReplyStore[Any] | None = None,
        *,
        prefix: str = "",
        create: bool = False,
        owned: Sequence[Any] = (),
    ) -> None:
        self._sqs = sqs
        self._replies = replies
        self._prefix = prefix
        self._create = create
        self._owned = owned
        self._mailboxes: list[SQSMailbox[Any, Any]] = []
        self._closed = False

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = None,
    ) -> SQSMailbox[Any, Any]:
        """Open the mailbox of a queue that exists, or is created if the URL said ``create=true``.

        ``max_size`` and ``default_ttl`` are refused: SQS bounds no queue, and keeps messages for
        as long as the queue's own retention period says.
        """
        if self._closed:
            raise MailboxClosedError("the sqs:// backend was closed")
        if max_size is not None:
            raise UnsupportedOperationError("max_size: SQS bounds no queue")
        if default_ttl is not None:
            raise UnsupportedOperationError(
                "default_ttl: set MessageRetentionPeriod on the queue instead"
            )
        mailbox: SQSMailbox[Any, Any] = SQSMailbox(
            self._url(name),
            self._sqs,
            body_type=body_type,
            reply_type=reply_type,
            reply_resolver=reply_resolver,
            reply_store=self._replies,
            name=name,
        )
        self._mailboxes.append(mailbox)
        return mailbox

    def queues(self) -> list[str]:
        """List the queues whose names begin with the prefix, without it."""
        with translated(Place("account", "queues", self._sqs.meta.region_name)):
            pages = self._sqs.get_paginator("list_queues").paginate(
                **({"QueueNamePrefix": self._prefix} if self._prefix else {})
            )
            urls = [url for page in pages for url in page.get("QueueUrls", [])]
        return sorted(url.rpartition("/")[2].removeprefix(self._prefix) for url in urls)

    def reply_store(self) -> DynamoDBReplyStore[Any]:
        """Return the store in which callers of `send_expecting_reply` wait."""
        if self._replies is None:
            raise UnsupportedOperationError(
                "sqs:// has no reply store until it is told a DynamoDB table: add ?replies=TABLE"
            )
        return self._replies

    def create(self, identifier: str) -> SQSMailbox[Any, None]:
        """Open a mailbox that was told no types, as resolvers do."""
        return self.mailbox(identifier)

    def close(self) -> None:
        """Close every mailbox opened here and the clients; polls in flight end by themselves."""
        self._closed = True
        for mailbox in self._mailboxes:
            mailbox.close()
        for client in self._owned:
            client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _url(self, name: str) -> str:
        try:
            return find_queue(self._sqs, name, self._prefix)
        except MailboxResolutionError:
            if not self._create:
                raise
        queue = check_queue_name(name, self._prefix)
        attributes = {"FifoQueue": "true"} if queue.endswith(".fifo") else {}
        with translated(Place("queue", queue, self._sqs.meta.region_name)):
            made = self._sqs.create_queue(QueueName=queue, Attributes=attributes)
        return made["QueueUrl"]  # type: ignore[no-any-return]


def open_backend(url: str, parts: SplitResult) -> SQSBackend:
    """Open ``sqs://region[?endpoint=URL&prefix=TEXT&replies=TABLE&create=true]``."""
    if parts.username or parts.password or parts.path.strip("/"):
        raise InvalidParameterError(
            f"{redacted(url)!r}: sqs:// takes a region and options, no path and no credentials; "
            f"AWS's own configuration has those"
        )
    options = {key: values[-1] for key, values in parse_qs(parts.query).items()}
    if unknown := sorted(options.keys() - OPTIONS):
        raise InvalidParameterError(
            f"{redacted(url)!r}: sqs:// knows no {', '.join(unknown)}; "
            f"its options are {', '.join(sorted(OPTIONS))}"
        )
    region = parts.hostname or None
    endpoint = options.get("endpoint")
    services = ["sqs", "dynamodb"] if "replies" in options else ["sqs"]
    session = boto3.Session()
    try:
        with translated(Place("account", "default", region)):
            clients = [
                session.client(service, region_name=region, endpoint_url=endpoint, config=CLIENT)
                for service in services
            ]
    except ValueError as error:
        raise InvalidParameterError(
            f"{redacted(url)!r}: endpoint must be the URL of a server"
        ) from error
    return SQSBackend(
        clients[0],
        DynamoDBReplyStore(options["replies"], clients[1]) if "replies" in options else None,
        prefix=options.get("prefix", ""),
        create=options.get("create", "false").lower() in ("1", "true", "yes"),
        owned=clients,
    )
