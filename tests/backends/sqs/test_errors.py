"""What AWS says becomes one clear line, with nothing secret in it."""

import socket
from typing import Any

import boto3
import pytest
from botocore import exceptions as boto
from botocore.config import Config

from testkit.cloud import CREDENTIALS, REGION, Cloud
from weakincentives.contrib.mailbox.sqs import DynamoDBReplyStore, SQSMailbox
from weakincentives.contrib.mailbox.sqs.errors import Place, translate, translated
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    MailboxFullError,
    MailboxResolutionError,
)

PLACE = Place("queue", "orders", "eu-west-1")
SECRET = "AQoDYXdzEJr-session-token"


def client_error(code: str, message: str = "", status: int = 400) -> boto.ClientError:
    return boto.ClientError(
        {
            "Error": {"Code": code, "Message": message},
            "ResponseMetadata": {"HTTPStatusCode": status},
        },
        "ReceiveMessage",
    )


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (client_error("AWS.SimpleQueueService.NonExistentQueue"), MailboxResolutionError, "create"),
        (client_error("QueueDoesNotExist"), MailboxResolutionError, "eu-west-1"),
        (client_error("ResourceNotFoundException"), MailboxResolutionError, "orders"),
        (client_error("AccessDenied"), MailboxConnectionError, "ReceiveMessage"),
        (client_error("AccessDeniedException"), MailboxConnectionError, "docs/aws.md"),
        (client_error("InvalidClientTokenId"), MailboxConnectionError, "credentials"),
        (client_error("SignatureDoesNotMatch", SECRET), MailboxConnectionError, "credentials"),
        (client_error("ExpiredToken"), MailboxConnectionError, "ExpiredToken"),
        (client_error("OverLimit"), MailboxFullError, "in flight"),
        (client_error("PurgeQueueInProgress"), MailboxError, "one purge a minute"),
        (client_error("QueueDeletedRecently"), MailboxError, "again in a minute"),
        (client_error("RequestThrottled"), MailboxConnectionError, "throttles"),
        (client_error("InternalError", status=500), MailboxConnectionError, "InternalError"),
        (client_error("InvalidAddress", "odd", status=404), MailboxError, "odd"),
        (boto.NoCredentialsError(), MailboxConnectionError, "AWS_ACCESS_KEY_ID"),
        (boto.NoRegionError(), MailboxConnectionError, "AWS_DEFAULT_REGION"),
        (boto.ReadTimeoutError(endpoint_url="http://x"), MailboxConnectionError, "reached"),
        (boto.ParamValidationError(report=SECRET), InvalidParameterError, "parameters"),
    ],
)
def test_translation(error: Exception, kind: type[MailboxError], says: str) -> None:
    ours = translate(error, PLACE)
    assert type(ours) is kind
    assert says in str(ours)
    assert "orders" in str(ours)
    assert SECRET not in str(ours)
    assert "\n" not in str(ours)


def test_a_refused_signature_shows_the_request_to_nobody() -> None:
    with pytest.raises(MailboxConnectionError) as caught, translated(PLACE):
        raise client_error("SignatureDoesNotMatch", f"canonical string: {SECRET}")
    assert caught.value.__cause__ is None


def test_the_wrong_region_is_named() -> None:
    place = Place("queue", "orders", "eu-west-1", "us-east-1")
    error = translate(client_error("NonExistentQueue"), place)
    assert "us-east-1" in str(error)
    assert "eu-west-1" in str(error)


def test_a_queue_that_is_not_there(ministack: Cloud) -> None:
    url = ministack.queue().rpartition("/")[0] + "/nobody-made-me"
    box: SQSMailbox[Any, Any] = SQSMailbox(url, ministack.sqs)
    for call in (lambda: box.send(1), box.receive, box.stats, box.purge):
        with pytest.raises(MailboxResolutionError, match="nobody-made-me"):
            call()


def test_a_server_that_is_not_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{free.getsockname()[1]}"
    options: dict[str, Any] = {
        "region_name": REGION,
        "endpoint_url": endpoint,
        "config": Config(retries={"total_max_attempts": 1}, connect_timeout=1),
        **CREDENTIALS,
    }
    box: SQSMailbox[Any, Any] = SQSMailbox(f"{endpoint}/1/q", boto3.client("sqs", **options))
    with pytest.raises(MailboxConnectionError, match="cannot be reached"):
        box.send(1)
    with pytest.raises(MailboxConnectionError, match="cannot be reached"):
        box.receive(wait_time_seconds=5)
    store: DynamoDBReplyStore[Any] = DynamoDBReplyStore("t", boto3.client("dynamodb", **options))
    with pytest.raises(MailboxConnectionError, match="cannot be reached"):
        store.get("x")


def test_no_credentials(ministack: Cloud, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    client = boto3.Session().client("sqs", region_name=REGION, endpoint_url=ministack.endpoint)
    box: SQSMailbox[Any, Any] = SQSMailbox(ministack.queue(), client)
    with pytest.raises(MailboxConnectionError, match="no AWS credentials"):
        box.send(1)


def test_an_error_in_flight_is_full(ministack: Cloud) -> None:
    box = ministack.mailbox()

    def over(**_: Any) -> None:
        raise client_error("OverLimit")

    ministack.sqs.meta.events.register("before-call.sqs.ReceiveMessage", over)
    with pytest.raises(MailboxFullError):
        box.receive()


def test_stats_warn_when_too_much_is_in_flight(
    ministack: Cloud, caplog: pytest.LogCaptureFixture
) -> None:
    box = ministack.mailbox()

    def many(parsed: dict[str, Any], **_: Any) -> None:
        parsed["Attributes"]["ApproximateNumberOfMessagesNotVisible"] = "119000"

    ministack.sqs.meta.events.register("after-call.sqs.GetQueueAttributes", many)
    assert box.stats().in_flight == 119_000
    assert "119000" in caplog.text


def test_a_second_purge_within_a_minute_says_why(ministack: Cloud) -> None:
    # No emulator keeps the minute, so its refusal is put into the answer's place.
    def refuse(**_: Any) -> None:
        raise client_error("AWS.SimpleQueueService.PurgeQueueInProgress", status=403)

    box = ministack.mailbox()
    box.send(1)
    ministack.sqs.meta.events.register("before-call.sqs.PurgeQueue", refuse)
    with pytest.raises(MailboxError, match="one purge a minute"):
        box.purge()
    assert [message.body for message in box.receive(wait_time_seconds=5)] == [1]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "orders",
        "arn:aws:sqs:eu-west-1:1:orders",
        "https://h/1/a b",
        "ftp://h/1/q",
        "http://[/q",
        7,
    ],
)
def test_urls_that_are_no_queues(ministack: Cloud, url: Any) -> None:
    with pytest.raises(InvalidParameterError, match="queue_url"):
        SQSMailbox(url, ministack.sqs)
