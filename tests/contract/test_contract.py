"""The contract of every backend in one table: each row becomes a class of tests.

A place says how a mailbox or a reply store is made there; it is in the module of its backend.
"""

from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.contract import consumer_elsewhere, on_directory, on_memory, on_redis, on_sqlite, on_sqs
from weakincentives.contrib import mailbox
from weakincentives.contrib.mailbox.contract import MailboxContract, ReplyStoreContract
from weakincentives.contrib.mailbox.contract.machine import StateMachine


class Row(NamedTuple):
    name: str
    place: type
    suite: type = MailboxContract
    full: bool = False
    """Whether it runs only in the full run."""
    faces: tuple[str, ...] = ()
    """The faces that are driven, if not all that the place has."""


class ManyPrograms(StateMachine):
    """Ten times as many random programs as the contract runs."""

    model_examples = 200


TABLE = (
    Row("InMemory", on_memory.Objects),
    Row("InMemorySerialized", on_memory.Serialized),
    Row("InMemoryReplyStore", on_memory.Objects, ReplyStoreContract),
    Row("Bytes", on_memory.Bytes),
    # Blocking calls do not ask how a store takes its steps: they are those of Bytes.
    Row("Blocking", on_memory.Blocking, faces=("async",)),
    Row("BlockingCalls", on_memory.Blocking, full=True, faces=("sync",)),
    Row("Awaited", on_memory.Awaited),
    Row("Frugal", on_memory.Frugal),
    Row("BytesReplyStore", on_memory.Bytes, ReplyStoreContract),
    Row("AwaitedReplyStore", on_memory.Awaited, ReplyStoreContract),
    Row("ManyProgramsOnBytes", on_memory.Bytes, ManyPrograms, full=True),
    Row("ManyProgramsBlocking", on_memory.Blocking, ManyPrograms, full=True),
    Row("ManyProgramsAwaited", on_memory.Awaited, ManyPrograms, full=True),
    # Both make async calls in threads as SQLite does, where those are driven.
    Row("Directory", on_directory.Directory, faces=("sync",)),
    Row("DirectoryAsyncCalls", on_directory.Directory, full=True, faces=("async",)),
    Row("SQLite", on_sqlite.File),
    Row("SQLiteFakeTime", on_sqlite.FakeTime),
    Row("SQLiteConsumerElsewhere", consumer_elsewhere.ConsumerElsewhere, faces=("sync",)),
    Row(
        "SQLiteConsumerElsewhereAsyncCalls",
        consumer_elsewhere.ConsumerElsewhere,
        full=True,
        faces=("async",),
    ),
    Row("SQLiteIndexedLeases", on_sqlite.IndexedLeases, StateMachine),
    Row("SQLiteReplyStore", on_sqlite.File, ReplyStoreContract),
    Row("SQLiteReplyStoreFakeTime", on_sqlite.FakeTime, ReplyStoreContract),
    Row("SQLiteManyPrograms", on_sqlite.FakeTime, ManyPrograms, full=True),
    Row("SQLiteIndexedLeasesManyPrograms", on_sqlite.IndexedLeases, ManyPrograms, full=True),
    Row("Redis", on_redis.Standalone),
    Row("AsyncRedis", on_redis.AwaitedStandalone),
    Row("RedisReplies", on_redis.Standalone, ReplyStoreContract),
    Row("AsyncRedisReplies", on_redis.AwaitedStandalone, ReplyStoreContract),
    Row("RedisOnSentinel", on_redis.Sentinel, full=True),
    Row("AsyncRedisOnSentinel", on_redis.AwaitedSentinel, full=True),
    Row("RedisRepliesOnSentinel", on_redis.Sentinel, ReplyStoreContract, full=True),
    Row("AsyncRedisRepliesOnSentinel", on_redis.AwaitedSentinel, ReplyStoreContract, full=True),
    Row("RedisOnCluster", on_redis.Cluster, full=True),
    Row("AsyncRedisOnCluster", on_redis.AwaitedCluster, full=True),
    Row("RedisRepliesOnCluster", on_redis.Cluster, ReplyStoreContract, full=True),
    Row("AsyncRedisRepliesOnCluster", on_redis.AwaitedCluster, ReplyStoreContract, full=True),
    Row("Standard", on_sqs.Standard),
    Row("Fifo", on_sqs.Fifo),
    Row("StandardOnMoto", on_sqs.StandardOnMoto, full=True),
    Row("FifoOnMoto", on_sqs.FifoOnMoto, full=True),
    Row("StandardOnLocalStack", on_sqs.StandardOnLocalStack, full=True),
    Row("FifoOnLocalStack", on_sqs.FifoOnLocalStack, full=True),
    Row("StandardOnFauxqs", on_sqs.StandardOnFauxqs, full=True),
    Row("FifoOnFauxqs", on_sqs.FifoOnFauxqs, full=True),
    Row("DynamoDB", on_sqs.DynamoDB, ReplyStoreContract),
    Row("DynamoDBOnMoto", on_sqs.DynamoDBOnMoto, ReplyStoreContract),
    Row("DynamoDBOnDynalite", on_sqs.DynamoDBOnDynalite, ReplyStoreContract, full=True),
)


def _class_of(row: Row) -> Any:
    faces = {"faces": row.faces} if row.faces else {}
    made = type(f"Test{row.name}", (row.place, row.suite), {"__module__": __name__, **faces})
    return pytest.mark.full(made) if row.full else made


for row in TABLE:
    globals()[f"Test{row.name}"] = _class_of(row)


@pytest.mark.parametrize("suite", [MailboxContract, ReplyStoreContract])
def test_every_backend_is_in_the_table(suite: type) -> None:
    rooms = {file.parent.name for file in Path(*mailbox.__path__).glob("*/backend.py")}
    quick = {row.place.__module__ for row in TABLE if row.suite is suite and not row.full}
    assert {f"tests.contract.on_{room}" for room in (*rooms, "memory")} <= quick


def test_no_row_hides_another() -> None:
    assert len({row.name for row in TABLE}) == len(TABLE)


def test_a_face_that_the_quick_run_leaves_out_is_driven_in_the_full_one() -> None:
    driven: dict[tuple[type, type], set[str]] = {}
    for row in TABLE:
        faces = row.faces or getattr(row.place, "faces", row.suite.faces)
        driven.setdefault((row.place, row.suite), set()).update(faces)
    for (place, suite), faces in driven.items():
        assert faces == set(getattr(place, "faces", suite.faces)), place
