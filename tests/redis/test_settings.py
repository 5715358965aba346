"""What the server must allow: its settings, its users' rights, its memory and its replicas."""

import logging
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.servers import Server, Standalone, eventually
from weakincentives.contrib.mailbox.redis import RedisMailbox, link
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    MailboxFullError,
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
        monkeypatch.setattr(link, "RECHECK", 0.0)
        with pytest.raises(MailboxConnectionError, match="allkeys-lru"):
            box.send(2)


def test_an_old_server_is_refused() -> None:
    from weakincentives.contrib.mailbox.redis.server import check_server

    with pytest.raises(MailboxConnectionError, match=r"6\.2\.7.*7\.0"):
        check_server({"redis_version": "6.2.7"})
    assert check_server({"redis_version": "7.0.0", "aof_enabled": "1"}) is None


def test_no_append_only_file_is_warned_about_once(
    binary: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "RECHECK", 0.0)
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
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text()
    rights = re.search(r"A user needs `([^`]+)`.*?`(~{queue:\*)` and `(~{replies:\*)`", page, re.S)
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
        assert reply.wait(timeout=5) is None
        ended = threading.Event()
        waiting = threading.Thread(target=lambda: (box.receive(wait_time_seconds=30), ended.set()))
        waiting.start()
        eventually(
            lambda: server.info("clients")["blocked_clients"] == "1", 5, "a blocked consumer"
        )
        box.close()
        assert ended.wait(5)
        waiting.join()


def test_a_wrong_password_is_told_at_once(binary: Path) -> None:
    users = {"default": "on >right ~* +@all"}
    with Standalone(binary, users=users) as server, server.client(password="wrong") as client:
        began = time.monotonic()
        with Box("box", client) as box, pytest.raises(MailboxConnectionError) as caught:
            box.send(1)
        assert time.monotonic() - began < 5
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


def test_a_foreign_key_in_the_way_is_an_error_of_its_own(box: Box, server: Standalone) -> None:
    server.command("SET", "{queue:box}:data", "mine")
    with pytest.raises(MailboxError, match="WRONGTYPE") as caught:
        box.send(1)
    assert not isinstance(caught.value, MailboxConnectionError)


# min_replicas


def test_min_replicas(binary: Path) -> None:
    with (
        Standalone(binary) as primary,
        Server(binary, [f"replicaof 127.0.0.1 {primary.port}"]) as replica,
        primary.client() as client,
    ):
        eventually(
            lambda: replica.info("replication")["master_link_status"] == "up", 10, "the link"
        )
        one: Box = Box("box", client, min_replicas=1)
        two: Box = Box("box", client, min_replicas=2)
        one.send(1)
        assert replica.command("HLEN", "{queue:box}:data") == 1
        with pytest.raises(MailboxConnectionError, match=r"1 of 2 replicas.*message_id is safe"):
            two.send(2, message_id="twice")
        # A repeat finds the message there and changes nothing: it must wait all the same.
        with pytest.raises(MailboxConnectionError, match="1 of 2"):
            two.send(2, message_id="twice")
        replica.pause()
        with pytest.raises(MailboxConnectionError, match="0 of 1"):
            one.send(2, message_id="twice")
        replica.resume()
        one.send(2, message_id="twice")
        assert one.approximate_count() == 2
        one.close()
        two.close()


@pytest.mark.parametrize("value", [-1, 1.5, "1", True])
def test_min_replicas_is_checked(client: Any, value: Any) -> None:
    with pytest.raises(InvalidParameterError, match="min_replicas"):
        RedisMailbox("box", client, min_replicas=value)
