"""The backend of ``sqs://region``: queues on SQS and, if a table is named, replies on DynamoDB."""

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult

from weakincentives.contrib.mailbox.urls import max_bytes_of, options_of, redacted
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxResolutionError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.seam.backend import BaseBackend
from weakincentives.runtime.mailbox.seam.options import QueueOptions
from weakincentives.runtime.mailbox.seam.step_threads import STEP_THREADS

from .codec import field_of
from .connection import open_clients
from .errors import Place, translated
from .mailbox import SQSMailbox
from .new_queues import NEW_QUEUE_OPTIONS, NewQueues, new_queues_of
from .queue_names import QueueUrls
from .replies import DynamoDBReplyStore
from .store import SQSStore

__all__ = ["SQSBackend", "open_backend"]

OPTIONS = {
    "create",
    "endpoint",
    "group_by",
    "max_bytes",
    "prefix",
    "profile",
    "replies",
    "replies_endpoint",
    *NEW_QUEUE_OPTIONS,
}
BOOLEANS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
MOST_QUEUES = 1000
"""How many queues SQS lists in one answer."""
REGION = re.compile(r"[a-z0-9-]{1,63}")


class SQSBackend(BaseBackend[SQSMailbox[Any, Any], DynamoDBReplyStore[Any] | None]):
    """The queues of one account and region; ``prefix`` is put before each name.

    A queue must exist, unless there are settings for ``new_queues``. ``max_size`` and
    ``default_ttl`` are refused: SQS bounds no queue, and keeps messages for the retention period of
    the queue.
    """

    def __init__(
        self,
        sqs: Any,
        replies: DynamoDBReplyStore[Any] | None = None,
        *,
        prefix: str = "",
        new_queues: NewQueues | None = None,
        group_by: str | None = None,
        max_bytes: int | None = None,
        owned: Sequence[Any] = (),
    ) -> None:
        super().__init__(f"sqs://{sqs.meta.region_name}", replies, max_bytes)
        self._sqs = sqs
        self._prefix = prefix
        self._urls = QueueUrls(sqs, prefix)
        self._new_queues = new_queues
        self._group = None if group_by is None else field_of(group_by)
        self._owned = owned

    def queues(self) -> list[str]:
        """List the queues whose names begin with the prefix, and strip it from the names."""
        with translated(Place("account", "queues", self._sqs.meta.region_name)):
            pages = self._sqs.get_paginator("list_queues").paginate(
                MaxResults=MOST_QUEUES,  # told none, SQS stops there and does not say so
                **({"QueueNamePrefix": self._prefix} if self._prefix else {}),
            )
            urls = [url for page in pages for url in page.get("QueueUrls", [])]
        return sorted(url.rpartition("/")[2].removeprefix(self._prefix) for url in urls)

    async def _delete(self, name: str, force: bool) -> bool:
        try:
            store = SQSStore(self._urls.find(name), self._sqs, name=name)
        except MailboxResolutionError:
            return False
        deleted = await store.delete(force)
        self._urls.forget(name)
        return deleted

    def _steps_of(self, name: str) -> object:
        return self._sqs

    def reply_store(self) -> DynamoDBReplyStore[Any]:
        """Return the store for the replies to `send_expecting_reply`."""
        if self._replies is None:
            raise UnsupportedOperationError(
                "sqs:// has no reply store without a DynamoDB table: add ?replies=TABLE"
            )
        return self._replies

    def _open(self, name: str, options: QueueOptions) -> SQSMailbox[Any, Any]:
        if options.max_size is not None:
            raise UnsupportedOperationError("max_size: SQS bounds no queue")
        if options.default_ttl is not None:
            raise UnsupportedOperationError(
                "default_ttl: set MessageRetentionPeriod on the queue instead"
            )
        return SQSMailbox(
            self._url(name),
            self._sqs,
            body_type=options.body_type,
            reply_type=options.reply_type,
            reply_resolver=options.reply_resolver,
            reply_store=options.reply_store,
            message_group_id=self._group,
            max_bytes=options.max_bytes,
            name=name,
        )

    def _disconnect(self) -> None:
        for client in self._owned:  # long polls in flight end by themselves
            client.close()
            STEP_THREADS.release(client)

    def _url(self, name: str) -> str:
        try:
            return self._urls.find(name)
        except MailboxResolutionError:
            if self._new_queues is None:
                raise
        return self._new_queues.create(self._sqs, name, self._prefix)


def open_backend(url: str, parts: SplitResult) -> SQSBackend:
    """Open ``sqs://region``; docs/aws.md lists the options."""
    if "@" in parts.netloc or parts.path.strip("/") or parts.fragment:
        raise InvalidParameterError(
            f"{redacted(url)!r}: sqs:// takes a region and options, no path and no credentials; "
            f"AWS's own configuration has those"
        )
    options = options_of(url, parts.query, OPTIONS)
    max_bytes = max_bytes_of(options)
    create = BOOLEANS.get(options.get("create", "false").lower())
    if create is None:
        raise InvalidParameterError(f"{redacted(url)!r}: create must be true or false")
    if not create and (useless := sorted(options.keys() & NEW_QUEUE_OPTIONS)):
        raise InvalidParameterError(
            f"{redacted(url)!r}: {', '.join(useless)} needs create=true: it is for new queues"
        )
    region = parts.netloc.lower() or None
    if region is not None and not REGION.fullmatch(region):
        raise InvalidParameterError(
            f"{redacted(url)!r}: write sqs://region, such as sqs://eu-west-1"
        )
    endpoint = options.get("endpoint")
    endpoints = {"sqs": endpoint}
    if "replies" in options:
        endpoints["dynamodb"] = options.get("replies_endpoint", endpoint)
    try:
        clients = open_clients(endpoints, region, options.get("profile"))
    except ValueError as error:
        raise InvalidParameterError(
            f"{redacted(url)!r}: an endpoint must be the URL of a server"
        ) from error
    return SQSBackend(
        clients[0],
        DynamoDBReplyStore(options["replies"], clients[1]) if "replies" in options else None,
        prefix=options.get("prefix", ""),
        new_queues=new_queues_of(options) if create else None,
        group_by=options.get("group_by"),
        max_bytes=max_bytes,
        owned=clients,
    )
