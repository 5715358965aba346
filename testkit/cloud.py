"""One emulated AWS, clients that may do what the documented policy allows, and their calls."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from testkit.servers.aws import ENVIRONMENT, REGION
from weakincentives.contrib.mailbox.sqs import DynamoDBReplyStore, SQSMailbox
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import MailboxError, UnsupportedOperationError

__all__ = ["CREDENTIALS", "REGION", "Cloud", "Ledger", "documented_policies"]

CREDENTIALS = {name.lower(): value for name, value in ENVIRONMENT.items()}
"""The same, as boto3 takes them."""
DOCUMENT = Path(__file__).parents[1] / "docs" / "aws.md"


def documented_policies() -> list[dict[str, set[str]]]:
    """Read the policies of docs/aws.md: for each, the actions of each statement."""
    blocks = re.findall(r"```json\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    return [
        {statement["Sid"]: set(statement["Action"]) for statement in json.loads(block)["Statement"]}
        for block in blocks
    ]


ALLOWED = {
    action for policy in documented_policies() for actions in policy.values() for action in actions
}


def action_of(service: str, operation: str) -> str:
    """Return what IAM calls the permission for an API call."""
    if service == "sqs":
        operation = operation.removesuffix("Batch")
    return f"{service}:{operation}"


class Ledger:
    """Counts API calls, and allows none that the documented policies leave out."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.actions: set[str] = set()

    def watch(self, client: Any) -> Any:
        service = client.meta.service_model.service_name

        def note(model: Any, **_: Any) -> None:
            action = action_of(service, model.name)
            assert action in ALLOWED, f"docs/aws.md allows no {action}"
            self.calls[model.name] += 1
            self.actions.add(action)

        client.meta.events.register(f"before-call.{service}", note)
        return client


class Cloud:
    """An endpoint, an administrator who may do anything, and clients that may not.

    ``replies`` is the endpoint of DynamoDB where an emulator has none.
    """

    def __init__(self, endpoint: str, *, replies: str = "") -> None:
        self.endpoint = endpoint
        self.replies_endpoint = replies or endpoint
        self.admin = self._client("sqs")
        self.ledger = Ledger()
        self.sqs = self.ledger.watch(self._client("sqs"))
        self.dynamodb = self.ledger.watch(self._client("dynamodb"))
        self._tables: set[str] = set()

    def queue(self, name: str = "", **attributes: str) -> str:
        """Create a queue, or find it, and return its URL."""
        name = name or f"q-{new_id()}"
        if name.endswith(".fifo"):
            attributes["FifoQueue"] = "true"
        made = self.admin.create_queue(QueueName=name, Attributes=attributes)
        return str(made["QueueUrl"])

    def mailbox(self, queue: str = "", **options: Any) -> SQSMailbox[Any, Any]:
        """Make a mailbox on a queue of its own, or on the one of that name."""
        for unsupported in ("max_size", "default_ttl"):
            if options.pop(unsupported, None) is not None:
                raise UnsupportedOperationError(f"{unsupported}: SQS has none")
        return SQSMailbox(self.queue(queue), self.sqs, **options)

    def reply_store(self, table: str = "", **options: Any) -> DynamoDBReplyStore[Any]:
        """Make a reply store on a table of its own, or on the one of that name."""
        table = table or f"replies-{new_id()}"
        store: DynamoDBReplyStore[Any] = DynamoDBReplyStore(table, self.dynamodb, **options)
        if table not in self._tables:
            try:
                store.create_table()
            except MailboxError as error:
                if "UnknownOperation" not in str(error):  # dynalite sweeps nothing
                    raise
            self._tables.add(table)
        return store

    def client(self, service: str, **options: Any) -> Any:
        """Make one more client, counted by nobody."""
        return self._client(service, **options)

    def _client(self, service: str, **options: Any) -> Any:
        arguments = {
            "region_name": REGION,
            "endpoint_url": self.replies_endpoint if service == "dynamodb" else self.endpoint,
            "config": Config(max_pool_connections=50, retries={"max_attempts": 3}),
            **CREDENTIALS,
            **options,
        }
        return boto3.client(service, **arguments)
