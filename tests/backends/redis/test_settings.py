"""What the server must allow: its settings, its users' rights, its memory and its replicas."""

import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from testkit.servers import Server, Standalone
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis import client as redis_client
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxFullError,
    ReplyTimeoutError,
)

Box = RedisMailbox[Any, Any]


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_a_server_that_evicts_is_refused(binary: Path, policy: str) -> None:
    with (
        Standalone(binary, maxmemory="100mb", maxmemory_policy=policy) as server,
        server.client() as client,
        Box("box", client) as box,
    ):
        with pytest.raises(MailboxConnectionError, match=f"{policy}.*noeviction"):
            box.send(1)
        server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")
        box.send(1)


def test_settings_are_checked_again_now_and_then(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Standalone(binary) as server, server.client() as client, Box("box", client) as box:
        box.send(1)
        server.command("CONFIG", "SET", "maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")
        monkeypatch.setattr(redis_client, "RECHECK", 0.0)
        with pytest.raises(MailboxConnectionError, match="allkeys-lru"):
            box.send(2)


def test_an_old_server_is_refused() -> None:
    from weakincentives.contrib.mailbox.redis.server_check import check_server

    with pytest.raises(MailboxConnectionError, match=r"6\.2\.7.*7\.0"):
        check_server({"redis_version": "6.2.7"})
    assert check_server({"redis_version": "7.0.0", "aof_enabled": "1"}) is None


def test_no_append_only_file_is_warned_about_once(
    binary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_client, "RECHECK", 0.0)
    with (
        Standalone(binary) as server,
        server.client() as client,
        Box("box", client) as box,
        caplog.at_level(logging.WARNING),
    ):
        for number in range(3):
            box.send(number)
    assert [r.message for r in caplog.records if "append-only" in r.message] != []
    assert len(caplog.records) == 1


def test_a_full_server_refuses_sends_only(binary: Path) -> None:
    with (
        Standalone(binary, maxmemory="0", maxmemory_policy="noeviction") as server,
        server.client() as client,
        Box("box", client) as box,
    ):
        box.send_batch([1, 2, 3, 4])
        first, second, third = box.receive(max_messages=3)
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(MailboxFullError, match="maxmemory"):
            box.send(5)
        assert first.acknowledge()
        assert second.nack()
        assert third.extend_visibility(60)
        assert [m.body for m in box.receive(max_messages=2)] == [4, 2]
        assert box.stats().in_flight == 3


def test_a_user_without_rights_is_told_so(binary: Path) -> None:
    users = {"default": "on nopass ~* +@all", "poor": "on >secret ~* +info +client +hello"}
    with (
        Standalone(binary, users=users) as server,
        server.client(username="poor", password="secret") as client,
        Box("box", client) as box,
        pytest.raises(MailboxConnectionError, match="permissions") as caught,
    ):
        box.send(1)
    assert "secret" not in str(caught.value)


def test_the_rights_that_the_documentation_asks_for_are_enough(binary: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "redis.md").read_text()
    keys = r"`(~{queue:\*)`, `(~{replies:\*)` and `(~{wink}:\*)`"
    rights = re.search(rf"A user needs `([^`]+)`.*?{keys}", page, re.S)
    assert rights is not None
    rules = " ".join(" ".join(rights.groups()).split())
    users = {"default": "on nopass ~* +@all", "app": f"on >secret -@all +hello {rules}"}
    with (
        Standalone(binary, users=users) as server,
        server.client(username="app", password="secret") as client,
        Box("box", client, min_replicas=0) as box,
    ):
        box.send_batch([1, 2], delay_seconds=0)
        one, two = box.receive(max_messages=2)
        assert one.acknowledge()
        assert two.extend_visibility(60)
        assert two.nack(visibility_timeout=60)
        assert (box.stats().delayed, box.peek()) == (1, [])
        reply = box.send_expecting_reply(3)
        box.receive(wait_time_seconds=5)[0].reply(None)
        assert reply.wait(timeout=120) is None
        ended = threading.Event()
        waiting = threading.Thread(target=lambda: (box.receive(wait_time_seconds=300), ended.set()))
        waiting.start()
        eventually(
            lambda: server.info("clients")["blocked_clients"] == "1", 60, "a blocked consumer"
        )
        box.close()
        assert ended.wait(120)
        waiting.join()


def test_a_wrong_password_is_told_at_once(binary: Path) -> None:
    users = {"default": "on >right ~* +@all"}
    with Standalone(binary, users=users) as server, server.client(password="wrong") as client:
        began = time.monotonic()
        with Box("box", client) as box, pytest.raises(MailboxConnectionError) as caught:
            box.send(1)
        assert time.monotonic() - began < 10
        assert "wrong" not in str(caught.value)


def test_an_unchecked_server_is_warned_about(
    binary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    users = {"default": "on nopass ~* +@all -info"}
    with (
        Standalone(binary, users=users) as server,
        server.client() as client,
        Box("box", client) as box,
        caplog.at_level(logging.WARNING),
    ):
        box.send(1)
    assert "INFO" in caplog.text


# min_replicas


def test_min_replicas(binary: Path) -> None:
    with (
        Standalone(binary) as primary,
        Server(binary, [f"replicaof 127.0.0.1 {primary.port}"]) as replica,
        primary.client() as client,
    ):
        eventually(
            lambda: replica.info("replication")["master_link_status"] == "up", 60, "the link"
        )
        one: Box = Box("box", client, min_replicas=1)
        two: Box = Box("box", client, min_replicas=2)
        _sent(one, 1, "once")
        assert replica.command("HLEN", "{queue:box}:data") == 1
        with pytest.raises(MailboxConnectionError, match=r"1 of 2 replicas.*safe to send it again"):
            two.send(2, message_id="twice")
        # A repeat finds the message there and changes nothing: it must wait all the same.
        with pytest.raises(MailboxConnectionError, match="1 of 2"):
            two.send(2, message_id="twice")
        replica.pause()
        with pytest.raises(MailboxConnectionError, match="0 of 1"):
            one.send(2, message_id="twice")
        replica.resume()
        _sent(one, 2, "twice")
        assert one.approximate_count() == 2
        one.close()
        two.close()


def _sent(box: Box, body: int, id: str) -> None:
    """Send until the replica has it in time: on a busy machine that may take a few attempts."""
    eventually(
        lambda: box.send(body, message_id=id), 120, "replica", ignoring=(MailboxConnectionError,)
    )


@pytest.mark.parametrize("value", [-1, 1.5, "1", True])
def test_min_replicas_is_checked(client: Any, value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="min_replicas"):
        RedisMailbox("box", client, min_replicas=value)


def commands(server: Standalone) -> int:
    return int(server.info("stats")["total_commands_processed"])


def test_a_server_without_memory_is_not_asked_again_and_again_for_a_reply(binary: Path) -> None:
    with (
        Standalone(binary, maxmemory_policy="noeviction") as server,
        server.client() as client,
        Box("box", client) as box,
    ):
        reply = box.send_expecting_reply("question")
        server.command("CONFIG", "SET", "maxmemory", "1mb")
        before = commands(server)
        with pytest.raises(ReplyTimeoutError):
            reply.wait(timeout=2)
        assert commands(server) - before < 300
        (message,) = box.receive()
        message.reply("answer")
        assert reply.wait() == "answer"


def test_a_user_who_may_not_block_looks_now_and_then(binary: Path) -> None:
    users = {"default": "on nopass ~* &* +@all", "app": "on nopass ~* &* +@all -@blocking"}
    with (
        Standalone(binary, users=users) as server,
        server.client(username="app", password="any") as client,
        Box("box", client) as box,
    ):
        before = commands(server)
        assert box.receive(wait_time_seconds=2) == []
        assert commands(server) - before < 400
        box.send("comes")
        assert [message.body for message in box.receive(wait_time_seconds=2)] == ["comes"]
