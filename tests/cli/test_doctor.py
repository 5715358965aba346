"""``wink doctor`` finds each misconfiguration that is planted, and is silent on a good set-up."""

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import apsw
import boto3
import pytest

import weakincentives
from testkit.servers import Standalone
from testkit.servers.aws import ENVIRONMENT, REGION
from tests.cli.wink import Wink
from tests.services import aws_endpoint, binary, on_each_flavour
from weakincentives.cli import queue_checks
from weakincentives.cli.doctor import FOUND
from weakincentives.contrib.mailbox.redis import checkup as of_redis
from weakincentives.contrib.mailbox.sqlite import checkup as of_sqlite
from weakincentives.ids import new_id
from weakincentives.runtime import DLQPolicy, Worker

__all__ = ["aws_endpoint", "binary"]

pytest_generate_tests = on_each_flavour
GIB = 2**30


def found_by(wink: Wink, *queues: str) -> list[str]:
    """Return the titles of what was found; each has a fact and a fix."""
    code, out, _ = wink("doctor", *queues, "--json")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == (FOUND if found else 0)
    assert all(one["fact"] and one["fix"] for one in found)
    return [f"{one['severity']}: {one['title']}" for one in found]


# --- Redis ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server(binary: Path) -> Iterator[Standalone]:
    with Standalone(binary, appendonly="everysec") as started:
        yield started


@pytest.fixture
def on_redis(server: Standalone, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(server.url, capsys)


@pytest.fixture
def configured(server: Standalone) -> Iterator[Any]:
    """Sets options of the server until the test ends."""
    before: dict[str, str] = {}

    def configure(**options: str) -> None:
        for name, value in options.items():
            option = name.replace("_", "-")
            before.setdefault(option, server.command("CONFIG", "GET", option)[1])
            server.command("CONFIG", "SET", option, value)

    yield configure
    for option, value in before.items():
        server.command("CONFIG", "SET", option, value)


def test_a_good_redis_is_silent(on_redis: Wink) -> None:
    on_redis.ok("send", "orders", "1")
    assert on_redis.ok("doctor") == "Nothing found.\n"
    assert on_redis.json("doctor") == []


def test_a_redis_that_evicts(on_redis: Wink, configured: Any) -> None:
    on_redis.ok("send", "orders", "1")
    configured(maxmemory_policy="allkeys-lru", maxmemory=str(GIB))
    found = found_by(on_redis)
    assert found == ["error: the server evicts messages when its memory is full"]
    shown = on_redis("doctor")[1]
    assert "fix: CONFIG SET maxmemory-policy noeviction" in shown


def test_a_redis_without_an_append_only_file(on_redis: Wink, configured: Any) -> None:
    configured(appendonly="no")
    assert found_by(on_redis) == ["error: messages are lost when the server stops"]


def test_a_redis_that_is_nearly_full(on_redis: Wink, server: Standalone, configured: Any) -> None:
    configured(maxmemory=str(int(int(server.info("memory")["used_memory"]) * 1.1)))
    assert any("memory is nearly full" in title for title in found_by(on_redis))


def test_a_redis_with_few_connections_left(
    on_redis: Wink, server: Standalone, configured: Any
) -> None:
    clients = [server.client() for _ in range(40)]
    for client in clients:
        client.ping()
    configured(maxclients="50")
    assert found_by(on_redis) == ["warning: the server has nearly no connections left"]
    for client in clients:
        client.close()


def test_a_redis_with_too_few_replicas(
    server: Standalone, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wink = Wink(f"{server.url}?min_replicas=1", capsys)
    assert found_by(wink) == ["error: sends fail, because there are too few replicas"]
    monkeypatch.setattr(of_redis, "_is_alone", lambda client: False)
    wink = Wink(server.url, capsys)
    assert found_by(wink) == ["warning: no server can take over if the primary fails"]


def test_a_replica_instead_of_its_primary(on_redis: Wink, server: Standalone) -> None:
    server.command("REPLICAOF", "127.0.0.1", "1")
    try:
        assert "error: this server is a replica, which takes no messages" in found_by(on_redis)
    finally:
        server.command("REPLICAOF", "NO", "ONE")


def test_a_replica_that_is_behind() -> None:
    late = {"ip": "h", "port": 1, "state": "online", "lag": 60}
    backend: Any = SimpleNamespace(_min_replicas=0, _client=None)
    (found,) = of_redis._of_replicas("h", {"connected_slaves": 1, "slave0": late}, backend)
    assert found.title.startswith("a replica is behind")


def test_a_user_who_may_not_do_enough(
    server: Standalone, capsys: pytest.CaptureFixture[str]
) -> None:
    rights = "+@read +@write +@scripting +@blocking +@transaction +info +time +wait +client|id"
    url = server.url.replace("redis://", "redis://doctor:secret@")
    wink = Wink(url, capsys)

    def allow(*rules: str) -> None:
        server.command("ACL", "SETUSER", "doctor", "reset", "on", ">secret", *rules)

    keys = ("~{queue:*", "~{replies:*", "~{wink}:*")
    allow(*keys, *rights.split(), "+client|unblock")
    assert found_by(wink) == []
    allow(*keys, *rights.split(), "+client|unblock", "-@write", "-wait")
    assert "error: this user may not do what mailboxes need" in found_by(wink)
    shown = wink("doctor")[1]
    assert "lpush" in shown
    assert "wait" in shown
    assert "secret" not in shown
    allow("~other:*", *rights.split(), "+client|unblock")
    assert "{queue:doctor}" in wink("doctor")[1]
    allow(*keys[:2], *rights.split(), "+client|unblock")
    assert found_by(wink) == []  # such a user may not list workers, and works all the same


def test_a_slow_server_and_a_wrong_clock(on_redis: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_redis, "SLOW_SECONDS", 0.0)
    assert found_by(on_redis) == ["warning: the server is slow to answer"]
    assert "round trips took" in on_redis("doctor")[1]
    monkeypatch.undo()
    now = of_redis.time.time
    monkeypatch.setattr(of_redis.time, "time", lambda: now() - 30)
    assert "warning: the clocks of this machine and the server differ" in found_by(on_redis)


@pytest.mark.parametrize(
    ("info", "title"),
    [
        ({"redis_version": "6.2.1"}, "the server is too old"),
        ({"aof_last_write_status": "err"}, "the server cannot write its append-only file"),
        ({"rdb_last_bgsave_status": "err"}, "the server cannot save its data"),
    ],
)
def test_what_a_server_says_of_itself(info: dict[str, str], title: str) -> None:
    (found,) = of_redis._of_settings("h:1", {"redis_version": "7.2.0", **info})
    assert found.severity == "error"
    assert found.title.startswith(title)


# --- SQLite ---------------------------------------------------------------------------------


@pytest.fixture
def on_sqlite(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Wink:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("22 1 8:1 / / rw - ext4 /dev/sda1 rw\n")
    monkeypatch.setattr(of_sqlite, "MOUNTS", mounts)
    usage = SimpleNamespace(free=2 * GIB)
    monkeypatch.setattr(of_sqlite.shutil, "disk_usage", lambda _: usage)
    wink = Wink(f"sqlite:///{tmp_path / 'test.db'}", capsys)
    wink.ok("send", "orders", "1")
    return wink


def test_a_good_file_is_silent(on_sqlite: Wink) -> None:
    assert on_sqlite.ok("doctor") == "Nothing found.\n"


def test_a_file_that_does_not_exist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert Wink(f"sqlite:///{tmp_path}/none.db", capsys)("doctor")[0] == 2


def test_a_file_that_is_less_durable(on_sqlite: Wink, capsys: pytest.CaptureFixture[str]) -> None:
    wink = Wink(f"{on_sqlite.url}?durability=normal", capsys)
    assert found_by(wink) == ["warning: the last messages are lost if the machine loses power"]


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        ("nfs4", "error: the file is on a network file system"),
        ("fuse.sshfs", "error: the file is on a network file system"),
        ("tmpfs", "warning: all messages are lost when the machine restarts"),
    ],
)
def test_a_file_in_a_bad_place(on_sqlite: Wink, tmp_path: Path, kind: str, title: str) -> None:
    with (tmp_path / "mountinfo").open("a") as mounts:
        mounts.write(f"30 22 0:5 / {tmp_path} rw shared:1 - {kind} host:/ rw\n")
    (found,) = found_by(on_sqlite)
    assert found.startswith(title)


def test_a_disk_that_is_nearly_full(on_sqlite: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    for free, severity in ((GIB // 2, "warning"), (10, "error")):
        usage = SimpleNamespace(free=free)
        monkeypatch.setattr(of_sqlite.shutil, "disk_usage", lambda _, usage=usage: usage)
        (found,) = found_by(on_sqlite)
        assert found.startswith(f"{severity}: the disk is nearly full")


def test_a_file_that_cannot_be_written(on_sqlite: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_sqlite.os, "access", lambda place, mode: False)  # root always may
    assert {title.partition(":")[0] for title in found_by(on_sqlite)} == {"error"}


def test_a_journal_that_a_reader_holds(
    on_sqlite: Wink, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_sqlite, "LARGE_JOURNAL", 0)
    reader = apsw.Connection(str(tmp_path / "test.db"))
    reader.execute("BEGIN")
    list(reader.execute("SELECT * FROM queue"))
    on_sqlite.ok("send", "orders", "2")
    (found,) = found_by(on_sqlite)
    assert found.startswith("warning: a process reads the file for so long")
    reader.execute("COMMIT")
    (found,) = found_by(on_sqlite)
    assert found == "warning: the journal has grown large"
    reader.close()
    assert found_by(on_sqlite) == []


# --- Queues ---------------------------------------------------------------------------------


def test_a_queue_that_nobody_serves(on_sqlite: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_checks, "UNSERVED_SECONDS", 0.0)
    assert found_by(on_sqlite) == ["warning: nobody consumes this queue"]
    assert found_by(on_sqlite, "other") == []
    on_sqlite.ok("send", "orders", "2")
    on_sqlite.ok("receive", "orders")
    assert found_by(on_sqlite) == []


def test_a_queue_that_was_paused_and_forgotten(on_sqlite: Wink) -> None:
    on_sqlite.ok("pause", "orders")
    (found,) = found_by(on_sqlite)
    assert found.startswith("warning: this queue is paused")
    on_sqlite.ok("resume", "orders")
    assert found_by(on_sqlite) == []


def test_workers_say_what_they_serve_and_hold(
    on_sqlite: Wink, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(mailbox: str, seen: float = 0.0, **held: float) -> None:
        message = SimpleNamespace(mailbox="orders", message_id="m", **held)
        worker = SimpleNamespace(
            host="h",
            pid=1,
            loops=[SimpleNamespace(mailbox=mailbox)],
            seen_seconds_ago=seen,
            held=len(held) and 1,
            oldest_held=[message] if held else [],
        )
        cls = weakincentives.contrib.mailbox.sqlite.backend.SQLiteBackend
        monkeypatch.setattr(cls, "workers", lambda self: [worker], raising=False)

    monkeypatch.setattr(queue_checks, "UNSERVED_SECONDS", 0.0)
    listed("other")
    assert found_by(on_sqlite) == ["warning: nobody consumes this queue"]
    listed("orders")
    assert found_by(on_sqlite) == []
    listed("orders", held_seconds=7200, lease_seconds_left=20)
    assert found_by(on_sqlite) == ["warning: a handler does not end"]
    listed("orders", held_seconds=60, lease_seconds_left=-5)
    (found,) = found_by(on_sqlite)
    assert "whose lease is over" in found
    listed("orders", seen=4.9, held_seconds=60, lease_seconds_left=-3)
    assert found_by(on_sqlite) == [], "it had 1.9 s left, and may have been extended since"
    listed("orders", seen=15, held_seconds=60, lease_seconds_left=-3)
    (found,) = found_by(on_sqlite)
    assert "a worker gives no sign" in found


def test_people_see_a_few_of_many_alike(on_sqlite: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_checks, "UNSERVED_SECONDS", 0.0)
    for n in range(12):
        on_sqlite.ok("send", f"q{n}", "1")
    assert len(found_by(on_sqlite)) == 13
    shown = on_sqlite("doctor")[1]
    assert shown.count("warning: nobody consumes") == 10
    assert shown.endswith("3 more: nobody consumes this queue\n")


def test_a_message_that_fails_again_and_again(on_sqlite: Wink) -> None:
    for _ in range(queue_checks.MANY_DELIVERIES):
        on_sqlite.ok("receive", "orders", "--visibility", "0")
    assert found_by(on_sqlite) == ["warning: a message fails again and again"]


def test_dead_letters_that_wait(on_sqlite: Wink) -> None:
    with weakincentives.connect(on_sqlite.url) as backend:
        policy: Any = DLQPolicy(backend.mailbox("dead"), max_delivery_count=1)
        worker: Any = Worker(backend.mailbox("orders"), lambda body: 1 / 0, dlq=policy)
        worker.run(max_iterations=1, wait_time_seconds=0)
    assert found_by(on_sqlite) == ["warning: dead letters wait for a decision"]
    assert "fix: wink dlq list dead" in on_sqlite("doctor")[1]


# --- SQS ------------------------------------------------------------------------------------


def test_sqs_queues(
    aws_endpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    sqs = boto3.client("sqs", REGION, endpoint_url=aws_endpoint)
    prefix = f"doctor-{new_id()}-"
    wink = Wink(f"sqs://{REGION}?prefix={prefix}&endpoint={aws_endpoint}", capsys)

    def arn_of(url: str) -> str:
        found = sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["QueueArn"])
        arn: str = found["Attributes"]["QueueArn"]
        return arn

    def create(name: str, **attributes: str) -> str:
        url: str = sqs.create_queue(QueueName=prefix + name, Attributes=attributes)["QueueUrl"]
        return url

    letters = create("letters", MessageRetentionPeriod="1209600")
    policy = {"deadLetterTargetArn": arn_of(letters), "maxReceiveCount": "10"}
    create("good", RedrivePolicy=json.dumps(policy))
    assert found_by(wink) == []
    create(
        "bad",
        MessageRetentionPeriod="60",
        VisibilityTimeout="0",
        DelaySeconds="5",
        MaximumMessageSize="1024",
    )
    assert len(found_by(wink, "bad")) == 4
    short = create("short", MessageRetentionPeriod="86400")
    policy = {"deadLetterTargetArn": arn_of(short), "maxReceiveCount": "3"}
    eager = create("eager", RedrivePolicy=json.dumps(policy))
    first, second = found_by(wink, "eager")
    assert "before your DLQPolicy" in first
    assert "deleted soon after" in second
    sqs.delete_queue(QueueUrl=short)
    assert "error: messages that are received too often have nowhere to go" in found_by(
        wink, "eager"
    )
    sqs.delete_queue(QueueUrl=eager)
