"""Replies on DynamoDB: conditions, sizes, sweeping, and writes that run twice."""

import asyncio
import decimal
import time
from typing import Any

import botocore.waiter
import pytest
from botocore.exceptions import EndpointConnectionError

from testkit.cloud import Cloud
from weakincentives.contrib.mailbox.sqs import DynamoDBReplyStore, part_bundles
from weakincentives.contrib.mailbox.sqs.replies import DynamoDBReplyTable
from weakincentives.contrib.mailbox.sqs.reply_polls import next_poll
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxResolutionError,
    PayloadTooLargeError,
    ReplyState,
)
from weakincentives.runtime.mailbox.seam.reply_table import JobStart, ReplyRow
from weakincentives.runtime.mailbox.testing import driven

# A fake clock must be ahead of the emulator's own, which removes what it takes for expired.
AHEAD = float(round(time.time()) + 10 * 365 * 86400)


class Repeating:
    """A client whose writes all run twice, as after an answer that was lost."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._client, name)
        if name not in ("put_item", "update_item", "delete_item"):
            return method

        def call(**request: Any) -> Any:
            method(**request)
            return method(**request)

        return call


def test_a_reply_that_is_consumed_twice_is_returned(cloud: Cloud) -> None:
    table = cloud.reply_store()._dynamodb._table
    store: DynamoDBReplyStore[Any] = DynamoDBReplyStore(table, Repeating(cloud.dynamodb))
    store.create("a", ttl=60)
    store.resolve("a", "value")
    entry = store.consume("a")
    assert entry is not None
    assert (entry.value, entry.state) == ("value", ReplyState.RESOLVED)
    assert store.consume("a") is None
    assert store.get("a") is None


def test_a_consumed_reply_that_was_not_deleted_is_gone(cloud: Cloud) -> None:
    store = cloud.reply_store()
    store.create("a", ttl=60)
    store.resolve("a", "value")

    def cut(**_: Any) -> None:
        raise EndpointConnectionError(endpoint_url="http://nowhere")

    events = cloud.dynamodb.meta.events
    events.register("before-call.dynamodb.DeleteItem", cut)
    entry = store.consume("a")
    events.unregister("before-call.dynamodb.DeleteItem", cut)
    assert entry is not None
    assert entry.value == "value"
    assert store.get("a") is None
    assert store.consume("a") is None
    assert store.resolve("a", "another") is False
    assert store.delete("a") is False


def test_a_table_that_is_not_ready_is_looked_at_every_second(
    ministack: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(botocore.waiter.time, "sleep", pauses.append)

    def creating(parsed: dict[str, Any], **_: Any) -> None:
        if len(pauses) < 3:
            parsed["Table"]["TableStatus"] = "CREATING"

    ministack.dynamodb.meta.events.register("after-call.dynamodb.DescribeTable", creating)
    ministack.reply_store()
    assert pauses == [1, 1, 1]


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


@pytest.mark.parametrize("emulator", ["ministack", "moto"])
def test_an_item_is_swept_by_ttl_only_after_nobody_can_read_it(
    emulator: str, request: pytest.FixtureRequest
) -> None:
    cloud: Cloud = request.getfixturevalue(emulator)
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


@pytest.mark.parametrize(("seconds", "reads"), [(0.5, 7), (5, 13), (30, 26)])
def test_the_longer_a_job_takes_the_rarer_its_reply_is_read(seconds: float, reads: int) -> None:
    age, count = 0.0, 1
    while age < seconds:
        pause = next_poll(age, 0.0)
        assert pause <= max(0.05, age / 2, 0.0)
        age, count = age + pause, count + 1
    assert count == reads
    assert next_poll(10, 1.0) == 0.75 * next_poll(10, 0.0) == 1.5


def test_a_wait_by_a_clock_that_is_behind_makes_no_more_reads(ministack: Cloud) -> None:
    store = ministack.reply_store(clock=FakeClock(AHEAD))
    store.create("a", ttl=7200)
    behind = ministack.reply_store(store._dynamodb._table, clock=FakeClock(AHEAD - 3600))
    pauses: list[float] = []
    polls: Any = behind._dynamodb.listen("a")

    async def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(min(seconds, 0.1))

    polls._pause = pause
    driven(polls.get(0.5))
    assert max(pauses[:-1]) > 0.05


def test_numbers_do_not_depend_on_the_programs_decimal_context(ministack: Cloud) -> None:
    store = ministack.reply_store()
    with decimal.localcontext(prec=6):
        store.create("a", ttl=60)
        store.resolve("a", "value")
        entry = store.consume("a")
    assert entry is not None
    assert entry.value == "value"


@pytest.mark.parametrize(
    ("value", "written"), [(0, "0"), (100, "100"), (1.5, "1.5"), (1e9 + 1e-6, "1000000000.000001")]
)
def test_numbers_are_written_out(value: float, written: str) -> None:
    assert part_bundles.number(value) == {"N": written}


@pytest.mark.parametrize("in_loop", [False, True])
def test_only_the_last_read_of_a_wait_is_consistent(cloud: Cloud, in_loop: bool) -> None:
    store, reads = cloud.reply_store(), consistent_reads(cloud)
    store.create("a", ttl=60)
    row = waited(store, "a", 0.4, in_loop)
    assert row is not None
    assert row.state == ReplyState.PENDING
    assert reads[-1] is True
    assert not any(reads[:-1])
    assert 2 <= len(reads) <= 10
    store.resolve("a", 1)
    reads.clear()
    row = waited(store, "a", 60, in_loop)
    assert row is not None
    assert row.state == ReplyState.RESOLVED
    assert reads == [False]


def test_a_reply_that_a_cheap_read_does_not_find_is_asked_for_again(ministack: Cloud) -> None:
    store, reads = ministack.reply_store(), consistent_reads(ministack)
    store.create("a", ttl=60)
    store.resolve("a", 1)

    def not_there_yet(parsed: dict[str, Any], **_: Any) -> None:
        if not reads[-1]:
            parsed.pop("Item", None)

    ministack.dynamodb.meta.events.register("after-call.dynamodb.GetItem", not_there_yet)
    row = waited(store, "a", 60, False)
    assert row is not None
    assert row.state == ReplyState.RESOLVED
    assert reads == [False, True]


def consistent_reads(cloud: Cloud) -> list[bool]:
    """Collect from now on, for each read, whether it is consistent."""
    reads: list[bool] = []

    def note(params: Any, **_: Any) -> None:
        reads.append(params["ConsistentRead"])

    cloud.dynamodb.meta.events.register("provide-client-params.dynamodb.GetItem", note)
    return reads


def waited(store: DynamoDBReplyStore[Any], id: str, wait: float, in_loop: bool) -> ReplyRow | None:
    listener = store._dynamodb.listen(id, in_loop=in_loop)
    return asyncio.run(listener.get(wait)) if in_loop else driven(listener.get(wait))


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


OWNER = "orders/1"
FIRST, SECOND = JobStart("handle-1", "host:1", 1), JobStart("handle-2", "host:2", 2)


def test_steps_of_a_job_that_run_twice_count_once(cloud: Cloud) -> None:
    table = DynamoDBReplyTable(cloud.reply_store()._dynamodb._table, Repeating(cloud.dynamodb))
    assert driven(table.create("a", 60.0, OWNER, 100.0))
    row = driven(table.start("a", OWNER, FIRST))
    assert row is not None
    assert row.start is not None
    assert row.start.series == 1
    assert driven(table.emit("a", OWNER, "handle-1", [b"0", b"1"]))
    assert driven(table.emit("a", OWNER, "handle-1", [b"2"]))
    assert [part.payload for part in driven(table.parts("a", 0, 10))] == [b"0", b"1", b"2"]
    assert driven(table.resolve("a", b"why", OWNER, failed=True))
    assert driven(table.reopen("a", 60.0, "orders/2"))
    reopened = driven(table.get("a"))
    assert reopened is not None
    assert (reopened.state, reopened.parts, reopened.start) == (ReplyState.PENDING, 3, None)


def test_a_start_that_is_over_writes_over_no_part_of_the_next(cloud: Cloud) -> None:
    """The first worker stands still between its two writes; both write the same bundle."""
    table = cloud.reply_store()._dynamodb
    driven(table.create("a", 60.0, OWNER))
    driven(table.start("a", OWNER, FIRST))
    stale = table._item("a")
    assert stale is not None
    driven(table.start("a", OWNER, SECOND))
    assert table._bundles.add(stale, [b"stale"]) is False
    assert driven(table.emit("a", OWNER, "handle-2", [b"good"]))
    assert table._bundles.add(stale, [b"stale"]) is False
    assert [part.payload for part in driven(table.parts("a", 0, 10))] == [b"good"]


def test_parts_are_found_wherever_they_are(cloud: Cloud) -> None:
    table = cloud.reply_store()._dynamodb
    driven(table.create("a", 60.0, OWNER))
    driven(table.start("a", OWNER, FIRST))
    parts = [b"%d" % number for number in range(24)]
    sizes = (1, 1, 5, 1, 2, 1, 9, 1, 3)
    assert sum(sizes) == len(parts)
    done = 0
    for size in sizes:
        driven(table.emit("a", OWNER, "handle-1", parts[done : done + size]))
        done += size
    for first in range(len(parts) + 1):
        found = driven(table.parts("a", first, 4))
        assert [part.number for part in found] == list(range(len(parts)))[first : first + 4]
        assert [part.payload for part in found] == parts[first : first + 4]


def test_bytes_of_parts_are_bounded(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_bundles, "MOST_PART_BYTES", 1_000_000)
    store = cloud.reply_store()
    table = store._dynamodb
    driven(table.create("a", 60.0, OWNER))
    driven(table.start("a", OWNER, FIRST))
    for _ in range(5):
        assert driven(table.emit("a", OWNER, "handle-1", [b"p" * 60_000] * 8))
    numbers: list[int] = []
    while rows := driven(table.parts("a", numbers[-1] + 1 if numbers else 0, 1000)):
        numbers += [row.number for row in rows]
    assert numbers == list(range(numbers[0], 40))
    assert len(numbers) * 60_000 <= 1_000_000
    assert numbers[0] <= 40 - 12
    left = cloud.dynamodb.scan(TableName=table._table)["Count"]
    store.delete("a")
    assert left > 1
    assert cloud.dynamodb.scan(TableName=table._table)["Count"] == 0
