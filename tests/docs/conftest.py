"""What pages and examples may need."""

from collections.abc import Callable

import pytest

from testkit.servers.aws import ENVIRONMENT, REGION
from tests.services import aws_endpoint, redis_url

__all__ = ["Provide", "aws_endpoint", "provide", "redis_url"]

Provide = Callable[[frozenset[str]], None]


@pytest.fixture
def provide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Provide:
    """Start what a page needs, and tell it where by the environment.

    ``redis`` sets REDIS_URL, ``aws`` what boto3 reads; ``queue NAME`` and ``table NAME`` make what
    a page on AWS takes for granted.
    """

    def start(needs: frozenset[str]) -> None:
        made = {need for need in needs if need.startswith(("queue ", "table "))}
        unknown = needs - made - {"aws", "redis"}
        if unknown or (made and "aws" not in needs):
            pytest.fail(f"no fixture can provide {', '.join(sorted(unknown or made))}")
        if "redis" in needs:
            monkeypatch.setenv("REDIS_URL", request.getfixturevalue("redis_url"))
        if "aws" in needs:
            monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("aws_endpoint"))
            for name, value in ENVIRONMENT.items():
                monkeypatch.setenv(name, value)
            monkeypatch.setenv("AWS_DEFAULT_REGION", REGION)
        for need in sorted(made):
            _make(*need.split(" ", 1))

    return start


def _make(kind: str, name: str) -> None:
    import boto3

    from weakincentives.contrib.mailbox import DynamoDBReplyStore

    if kind == "queue":
        boto3.client("sqs", REGION).create_queue(QueueName=name)
    else:
        DynamoDBReplyStore(name, boto3.client("dynamodb", REGION)).create_table()
