"""connect("sqs://…"), the factory, and a queue that others use too."""

import asyncio
import gc
import json
import weakref
from pathlib import Path
from typing import Any

import pytest
from urllib3.util import connection

from testkit.cloud import REGION, Cloud
from testkit.forks import in_fork
from weakincentives import connect
from weakincentives.contrib.mailbox import SQSMailboxFactory
from weakincentives.contrib.mailbox.sqs.backend import SQSBackend
from weakincentives.contrib.mailbox.sqs.queue_names import url_region
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import (
    CompositeResolver,
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxResolutionError,
    QueueNotEmptyError,
    SerializationError,
    UnsupportedOperationError,
)


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")


def url(cloud: Cloud, **options: str) -> str:
    query = "&".join(f"{key}={value}" for key, value in options.items())
    return f"sqs://{REGION}?endpoint={cloud.endpoint}&{query}"


def test_a_url_is_all_it_takes(ministack: Cloud) -> None:
    prefix = f"p{new_id()}-"
    with connect(url(ministack, prefix=prefix, create="true", replies=f"r-{new_id()}")) as backend:
        replies: Any = backend.reply_store()
        replies.create_table()
        orders = backend.mailbox("orders", body_type=dict, reply_type=str)
        reply = orders.send_expecting_reply({"sku": "A1"})
        (message,) = orders.receive(wait_time_seconds=20)
        assert message.body == {"sku": "A1"}
        message.reply("done")
        assert reply.wait(timeout=120) == "done"
        backend.mailbox("strict.fifo").send(1)
        assert backend.queues() == ["orders", "strict.fifo"]
        assert ministack.queue(f"{prefix}orders").endswith(f"/{prefix}orders")
        assert (orders.name, backend.create("orders").name) == ("orders", "orders")
    assert orders.closed
    with pytest.raises(MailboxClosedError):
        backend.mailbox("orders")


def test_a_queue_that_does_not_exist_is_an_error_unless_told_to_create(ministack: Cloud) -> None:
    with connect(url(ministack)) as backend:
        with pytest.raises(MailboxResolutionError, match="nowhere"):
            backend.mailbox("nowhere")
        with pytest.raises(UnsupportedOperationError, match="replies="):
            backend.reply_store()


def test_what_sqs_does_not_have_is_refused(ministack: Cloud) -> None:
    with connect(url(ministack, create="true")) as backend:
        with pytest.raises(UnsupportedOperationError, match="max_size"):
            backend.mailbox("orders", max_size=3)
        with pytest.raises(UnsupportedOperationError, match="MessageRetentionPeriod"):
            backend.mailbox("orders", default_ttl=60)


def test_a_url_names_the_field_that_is_the_group(cloud: Cloud) -> None:
    with connect(url(cloud, prefix=f"p{new_id()}-", create="on", group_by="customer")) as backend:
        orders = backend.mailbox("orders.fifo")
        orders.send_batch([{"customer": 7, "n": n} for n in range(2)])
        orders.send({"customer": "b", "n": 2})
        orders.send("of no customer")
        got = [orders.receive(wait_time_seconds=5)[0].body for _ in range(3)]
        assert sorted(map(str, got)) == sorted(
            map(str, [{"customer": 7, "n": 0}, {"customer": "b", "n": 2}, "of no customer"])
        )


def test_new_queues_are_made_as_the_url_says(cloud: Cloud) -> None:
    prefix = f"p{new_id()}-"
    options = {
        "create": "true",
        "retention": "3600",
        "kms_key": "alias/shop",
        "tags": "team:shop,env:live",
        "redrive_to": "dead",
        "max_receives": "5",
    }
    with connect(url(cloud, prefix=prefix, **options)) as backend:
        for name in ("jobs", "jobs.fifo"):
            backend.mailbox(name)
        assert backend.queues() == ["dead", "dead.fifo", "jobs", "jobs.fifo"]
    for suffix in ("", ".fifo"):
        queue_url = cloud.admin.get_queue_url(QueueName=f"{prefix}jobs{suffix}")["QueueUrl"]
        found = cloud.admin.get_queue_attributes(QueueUrl=queue_url, AttributeNames=["All"])
        attributes = found["Attributes"]
        assert attributes["MessageRetentionPeriod"] == "3600"
        assert attributes["KmsMasterKeyId"] == "alias/shop"
        policy = json.loads(attributes["RedrivePolicy"])
        assert policy["deadLetterTargetArn"].endswith(f":{prefix}dead{suffix}")
        assert int(policy["maxReceiveCount"]) == 5
        tags = cloud.admin.list_queue_tags(QueueUrl=queue_url)["Tags"]
        assert tags == {"team": "shop", "env": "live"}


def test_a_redrive_queue_that_exists_is_used_as_it_is(cloud: Cloud) -> None:
    prefix = f"p{new_id()}-"
    cloud.queue(f"{prefix}dead", MessageRetentionPeriod="600")
    options = {"create": "on", "retention": "3600", "redrive_to": "dead"}
    with connect(url(cloud, prefix=prefix, **options)) as backend:
        policy = backend.mailbox("jobs").stats().redrive_policy
    assert policy is not None
    assert policy["deadLetterTargetArn"].endswith(f":{prefix}dead")


def test_a_forked_child_opens_connections_of_its_own(
    ministack: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    create = connection.create_connection

    def noted(*args: Any, **options: Any) -> Any:
        opened.append(args)
        return create(*args, **options)

    def send_twice() -> None:
        box.send("child")
        box.send("child")
        assert len(opened) == 1

    box = ministack.mailbox()
    box.send("parent")
    monkeypatch.setattr(connection, "create_connection", noted)
    assert in_fork(send_twice) == 0
    box.send("parent")
    assert opened == []
    assert box.stats().pending == 4


def test_a_url_names_a_profile_and_an_endpoint_for_replies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text("[profile shop]\naws_access_key_id=OFSHOP\naws_secret_access_key=x\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    options = "profile=shop&replies=t&endpoint=http://h:1&replies_endpoint=http://h:2"
    with connect(f"sqs://eu-west-1?{options}") as backend:
        opened: Any = backend
        endpoints = [client.meta.endpoint_url for client in opened._owned]
        assert endpoints == ["http://h:1", "http://h:2"]
        for client in opened._owned:
            assert client._request_signer._credentials.access_key == "OFSHOP"
    with pytest.raises(MailboxConnectionError, match="ProfileNotFound"):
        connect("sqs://eu-west-1?profile=nobody")


@pytest.mark.parametrize(("text", "creates"), [("on", True), ("YES", True), ("off", False)])
def test_create_is_on_or_off(text: str, creates: bool) -> None:
    with connect(f"sqs://eu-west-1?create={text}") as backend:
        opened: Any = backend
        assert (opened._new_queues is not None) is creates


def test_a_queue_is_asked_for_once_and_a_mailbox_is_kept_by_nobody(cloud: Cloud) -> None:
    name = f"q-{new_id()}"
    cloud.queue(name)
    backend = SQSBackend(cloud.sqs)
    mailboxes = [weakref.ref(backend.create(name)) for _ in range(5)]
    assert cloud.ledger.calls["GetQueueUrl"] == 1
    gc.collect()
    assert [mailbox() for mailbox in mailboxes] == [None] * 5


def test_queues_are_listed_page_by_page(cloud: Cloud) -> None:
    def small_pages(params: dict[str, Any], **_: Any) -> None:
        assert params["MaxResults"] == 1000  # told none, SQS returns one page and no token
        params["MaxResults"] = 2

    cloud.sqs.meta.events.register("provide-client-params.sqs.ListQueues", small_pages)
    prefix = f"p{new_id()}-"
    for n in range(5):
        cloud.queue(f"{prefix}{n}")
    assert SQSBackend(cloud.sqs, prefix=prefix).queues() == list("01234")


def test_one_throttled_queue_does_not_slow_down_the_others() -> None:
    # Adaptive retries limit the rate of a client, and so of all its queues.
    with connect("sqs://eu-west-1") as backend:
        sqs: Any = backend
        assert sqs._sqs.meta.config.retries["mode"] == "standard"


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("sqs://key:secret@eu-west-1", "no credentials"),
        ("sqs://eu-west-1/orders", "no path"),
        ("sqs://eu-west-1?prefx=a", "prefx"),
        ("sqs://eu-west-1?endpoint=nonsense", "endpoint"),
        ("sqs://eu-west-1?create=maybe", "true or false"),
        ("sqs://eu-west-1?retention=3600", "retention needs create=true"),
        ("sqs://eu-west-1?create=true&retention=5", "from 60 to 1209600"),
        ("sqs://eu-west-1?create=true&max_receives=many", "max_receives"),
        ("sqs://eu-west-1?create=true&tags=team", "name:value"),
    ],
)
def test_bad_urls(bad: str, says: str) -> None:
    with pytest.raises(InvalidParameterError, match=says) as caught:
        connect(bad)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a/b", "http://h/1/q", "x" * 81, ".fifo", 7])
def test_names_are_checked_before_they_travel(ministack: Cloud, name: Any) -> None:
    with pytest.raises(InvalidParameterError, match="name"):
        SQSBackend(ministack.sqs).mailbox(name)
    with pytest.raises(InvalidParameterError, match="name"):
        SQSMailboxFactory(ministack.sqs).create(name)
    assert "GetQueueUrl" not in ministack.ledger.calls


def test_replies_go_where_the_resolver_allows(ministack: Cloud) -> None:
    for queue in ("replies-to-all", "secrets"):
        ministack.queue(queue)
    factory = SQSMailboxFactory(ministack.sqs)
    resolver = CompositeResolver(factory=factory, allow=["replies-*"])
    requests = ministack.mailbox(reply_resolver=resolver)
    replies = factory.create("replies-to-all")
    requests.send(1, reply_to=replies)
    requests.send(2, reply_to=factory.create("secrets"))
    messages = requests.receive(max_messages=10, wait_time_seconds=5)
    allowed, refused = sorted(messages, key=lambda message: message.body)
    allowed.reply("yes")
    assert [message.body for message in replies.receive(wait_time_seconds=5)] == ["yes"]
    with pytest.raises(MailboxResolutionError, match="allow"):
        refused.reply("no")


def test_told_no_resolver_nothing_is_resolved(ministack: Cloud) -> None:
    box = ministack.mailbox()
    box.send(1, reply_to=box)
    (message,) = box.receive(wait_time_seconds=5)
    with pytest.raises(MailboxResolutionError, match="reply_resolver"):
        message.reply("x")


def test_what_others_send_is_readable(ministack: Cloud) -> None:
    box = ministack.mailbox()
    queue_url = ministack.queue(box.name)
    event = {"Records": [{"s3": {"object": {"key": "a"}}}]}
    sent = ministack.admin.send_message(
        QueueUrl=queue_url,
        MessageBody=json.dumps(event),
        MessageAttributes={"kind": {"DataType": "String", "StringValue": "s3"}},
    )
    (message,) = box.receive(wait_time_seconds=5)
    assert (message.id, message.body) == (sent["MessageId"], event)
    assert dict(message.attributes) == {"kind": "s3"}
    assert message.acknowledge() is True
    ministack.admin.send_message(QueueUrl=queue_url, MessageBody="plain text")
    (message,) = box.receive(wait_time_seconds=5)
    with pytest.raises(SerializationError):
        _ = message.body
    assert message.payload == b"plain text"
    assert message.acknowledge() is True


def test_others_read_what_we_send(ministack: Cloud) -> None:
    box = ministack.mailbox()
    sent = box.send({"sku": "A1"}, attributes={"trace": "00-ab"})
    (raw,) = ministack.admin.receive_message(
        QueueUrl=ministack.queue(box.name), MessageAttributeNames=["All"], WaitTimeSeconds=5
    )["Messages"]
    assert json.loads(raw["Body"]) == {"sku": "A1"}
    attributes = {name: value["StringValue"] for name, value in raw["MessageAttributes"].items()}
    assert attributes == {"trace": "00-ab", "wink": json.dumps({"i": sent}, separators=(",", ":"))}


def test_stats_show_the_redrive_policy_and_sqs_follows_it(ministack: Cloud) -> None:
    dead = ministack.mailbox()
    arn = ministack.admin.get_queue_attributes(
        QueueUrl=ministack.queue(dead.name), AttributeNames=["QueueArn"]
    )["Attributes"]["QueueArn"]
    policy = {"deadLetterTargetArn": arn, "maxReceiveCount": 2}
    box = ministack.mailbox()
    assert box.stats().redrive_policy is None
    ministack.admin.set_queue_attributes(
        QueueUrl=ministack.queue(box.name), Attributes={"RedrivePolicy": json.dumps(policy)}
    )
    stats = box.stats()
    assert stats.redrive_policy is not None
    assert stats.redrive_policy["deadLetterTargetArn"] == arn
    sent = box.send("poison", attributes={"k": "v"})
    for _ in range(2):
        (message,) = box.receive(wait_time_seconds=5)
        message.nack()
    assert box.receive(wait_time_seconds=1) == []
    (message,) = dead.receive(wait_time_seconds=5)
    assert (message.id, message.body, dict(message.attributes)) == (sent, "poison", {"k": "v"})


@pytest.mark.parametrize(
    ("queue_url", "region"),
    [
        ("https://sqs.us-east-1.amazonaws.com/1/q", "us-east-1"),
        ("https://sqs.cn-north-1.amazonaws.com.cn/1/q", "cn-north-1"),
        ("https://eu-west-2.queue.amazonaws.com/1/q", "eu-west-2"),
        ("http://127.0.0.1:4566/1/q", None),
    ],
)
def test_the_region_of_a_url(queue_url: str, region: str | None) -> None:
    assert url_region(queue_url) == region


def test_a_queue_is_deleted_by_its_name(ministack: Cloud) -> None:
    prefix = f"p{new_id()}-"
    with connect(url(ministack, prefix=prefix, create="true")) as backend:
        orders = backend.mailbox("orders")
        orders.send(1)
        with pytest.raises(QueueNotEmptyError, match="'orders' was not deleted"):
            backend.delete("orders")
        assert backend.delete("orders", force=True) is True
        assert backend.queues() == []
        with pytest.raises(MailboxResolutionError):
            orders.send(2)
        assert backend.delete("orders") is False
        assert asyncio.run(backend.delete_async("never-made")) is False
        assert backend.queues() == []
