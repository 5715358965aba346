"""Replies on DynamoDB: conditions, sizes, sweeping, and writes that run twice."""

import time
from typing import Any

import pytest

from testkit.cloud import Cloud
from weakincentives.contrib.mailbox.sqs import DynamoDBReplyStore
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxResolutionError,
    PayloadTooLargeError,
    ReplyState,
)

# A fake clock must be ahead of the emulator's own, which removes what it takes for expired.
AHEAD = float(round(time.time()) + 10 * 365 * 86400)


class Repeating:
    """A client whose writes all run twice, as after an answer that was lost."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name not in ("put_item", "update_item"):
            return method

        def call(**request: Any) -> Any:
            method(**request)
            return method(**request)

        return call


@pytest.fixture(params=["ministack", "moto"])
def cloud(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def test_a_write_that_runs_twice_is_one_write(cloud: Cloud) -> None:
    table = cloud.reply_store()._dynamodb._table
    store: DynamoDBReplyStore[Any] = DynamoDBReplyStore(table, Repeating(cloud.dynamodb))
    assert store.create("a", ttl=60) is True
    assert store.resolve("a", "value") is True
    assert store.create("b", ttl=60) is True
    assert store.cancel("b") is True
    plain: DynamoDBReplyStore[Any] = DynamoDBReplyStore(table, cloud.dynamodb)
    assert plain.create("a", ttl=60) is False
    assert plain.resolve("a", "another") is False
    entry = plain.get("a")
    assert entry is not None
    assert entry.value == "value"
    assert plain.cancel("b") is False


def test_an_item_is_swept_by_ttl_only_after_nobody_can_read_it(cloud: Cloud) -> None:
    clock = FakeClock(AHEAD)
    store = cloud.reply_store(clock=clock)
    store.create("a", ttl=10)
    table = store._dynamodb._table
    described = cloud.dynamodb.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert (described["AttributeName"], described["TimeToLiveStatus"]) == ("ttl", "ENABLED")
    item = cloud.dynamodb.get_item(TableName=table, Key={"id": {"S": "a"}})["Item"]
    clock.advance(9)
    assert store.resolve("a", 1) is True
    entry = store.get("a")
    assert entry is not None
    assert int(item["ttl"]["N"]) >= entry.expires_at.timestamp()


def test_expiry_is_judged_at_every_step_not_by_sweeping(cloud: Cloud) -> None:
    clock = FakeClock(AHEAD)
    store = cloud.reply_store(clock=clock)
    for id in ("pending", "resolved", "kept"):
        store.create(id, ttl=10)
    store.resolve("resolved", 1)
    clock.advance(10)
    assert store.resolve("pending", 1) is False
    assert store.cancel("pending") is False
    entry = store.get("pending")
    assert entry is not None
    assert entry.state == ReplyState.EXPIRED
    assert sorted(store.scan_expired()) == ["kept", "pending"]
    assert store.cleanup_expired(limit=1) == 1
    assert store.cleanup_expired() == 1
    consumed = store.consume("resolved")
    assert consumed is not None
    assert consumed.value == 1


def test_a_reply_that_does_not_fit_into_an_item(cloud: Cloud) -> None:
    store = cloud.reply_store()
    store.create("a", ttl=60)
    with pytest.raises(PayloadTooLargeError, match="DynamoDB"):
        store.resolve("a", "x" * 400 * 1024)
    assert store.resolve("a", "x" * 390 * 1024) is True


def test_a_table_is_made_once(cloud: Cloud) -> None:
    store = cloud.reply_store("made-once")
    store.create("a", ttl=60)
    cloud.reply_store("made-once")
    assert store.get("a") is not None
    store.delete("a")


def test_a_table_that_is_not_there(cloud: Cloud) -> None:
    store: DynamoDBReplyStore[Any] = DynamoDBReplyStore("nobody-made-me", cloud.dynamodb)
    with pytest.raises(MailboxResolutionError, match="nobody-made-me"):
        store.get("a")


@pytest.mark.parametrize("name", ["", None, 7])
def test_table_names(ministack: Cloud, name: Any) -> None:
    with pytest.raises(InvalidParameterError, match="table_name"):
        DynamoDBReplyStore(name, ministack.dynamodb)


def test_scanning_goes_on_over_pages(ministack: Cloud) -> None:
    clock = FakeClock(AHEAD)
    store = ministack.reply_store(clock=clock)
    for n in range(12):
        store.create(f"id-{n}", ttl=1)

    def small_pages(params: dict[str, Any], **_: Any) -> None:
        params["Limit"] = 5

    events = ministack.dynamodb.meta.events
    events.register("provide-client-params.dynamodb.Scan", small_pages)
    clock.advance(2)
    assert len(store.scan_expired()) == 12
    assert ministack.ledger.calls["Scan"] == 3
    assert len(store.scan_expired(limit=7)) == 7
