"""What happens when the server or the network fails in the middle of something."""

import asyncio
import gc
import logging
import os
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from tests.redis import clients
from tests.redis.proxy import Proxy
from tests.redis.seeds import let_pass
from tests.servers import Server, Standalone, eventually
from weakincentives.contrib.mailbox.redis import RedisMailbox, link, packing
from weakincentives.contrib.mailbox.redis.faults import Cure, backoff, verdict
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    MailboxFullError,
    ReceiptHandleExpiredError,
)

Box = RedisMailbox[Any, Any]


# One place that judges errors


@pytest.mark.parametrize(
    ("error", "cure", "unknown"),
    [
        (NoScriptError("No matching script"), Cure.LOAD, False),
        (ResponseError("NOSCRIPT No matching script"), Cure.LOAD, False),
        (MovedError("3999 127.0.0.1:6381"), Cure.GO, False),
        (ResponseError("MOVED 3999 ::1:6381"), Cure.GO, False),
        (AskError("3999 127.0.0.1:6381"), Cure.ASK, False),
        (TryAgainError("Multiple keys request during rehashing of slot"), Cure.WAIT, False),
        (BusyLoadingError("Redis is loading the dataset in memory"), Cure.WAIT, False),
        (ResponseError("BUSY Redis is busy running a script."), Cure.WAIT, False),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), Cure.WAIT, False),
        (ReadOnlyError("You can't write against a read only replica."), Cure.SEEK, False),
        (ResponseError("UNBLOCKED force unblock from blocking operation"), Cure.SEEK, False),
        (ClusterDownError("CLUSTERDOWN The cluster is down"), Cure.SEEK, False),
        (ResponseError("MASTERDOWN Link with MASTER is down"), Cure.SEEK, False),
        (LostConnection("Connection closed by server."), Cure.SEEK, True),
        (NoAnswer("Timeout reading from socket"), Cure.SEEK, True),
        (ConnectionResetError("reset"), Cure.SEEK, True),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), Cure.FULL, False),
        (AuthenticationError("invalid username-password pair"), Cure.GIVE_UP, False),
        (ResponseError("WRONGTYPE Operation against a key"), Cure.GIVE_UP, False),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, Exception) else None,
)
def test_verdicts(error: Exception, cure: Cure, unknown: bool) -> None:
    judged = verdict(error)
    assert (judged.cure, judged.unknown) == (cure, unknown)
    if cure in (Cure.GO, Cure.ASK):
        assert judged.address in {("127.0.0.1", 6381), ("::1", 6381)}


def test_backoff_is_bounded_and_varies() -> None:
    assert backoff(1) == 0
    assert all(0 < backoff(n) <= 0.5 for n in range(2, 40))
    assert len({backoff(5) for _ in range(10)}) > 1


def test_idle_connections_that_were_cut_are_replaced(far: Box, proxy: Proxy) -> None:
    far.send(1)
    proxy.cut()
    far.send(2)
    assert len(far.receive(max_messages=10)) == 2


def test_scripts_are_loaded_again_after_a_flush(box: Box, server: Standalone) -> None:
    box.send(1)
    server.command("SCRIPT", "FLUSH")
    box.send(2)
    (message, _) = box.receive(max_messages=2)
    server.command("SCRIPT", "FLUSH")
    message.acknowledge()
    listening = threading.Thread(target=box.receive, kwargs={"wait_time_seconds": 5})
    listening.start()
    server.command("SCRIPT", "FLUSH")
    box.send(3)
    listening.join(5)
    assert not listening.is_alive()


def test_a_busy_server_is_waited_for(box: Box, server: Standalone) -> None:
    box.send(1)
    server.command("CONFIG", "SET", "busy-reply-threshold", 10)
    script = (
        "local t = redis.call('TIME') local ends = t[1] * 1000 + t[2] / 1000 + 500 repeat "
        "t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > ends return 1"
    )
    busy = threading.Thread(target=server.command, args=("EVAL", script, 0))
    busy.start()
    box.send(2)
    busy.join()
    assert box.approximate_count() == 2


def test_a_restart_is_survived(binary: Path) -> None:
    with Standalone(binary, appendonly="always") as server, server.client() as client:
        box = Box("box", client)
        box.send(1)
        got: list[Any] = []
        waiting = threading.Thread(target=lambda: got.extend(box.receive(wait_time_seconds=20)))
        held = box.receive()
        waiting.start()
        server.kill()
        server.restart()
        box.send(2)
        waiting.join(20)
        assert [m.body for m in got] == [2]
        assert held[0].acknowledge()
        box.close()


def test_patience_has_an_end(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "PATIENCE", 0.3)
    with Standalone(binary) as server, server.client() as client, Box("box", client) as box:
        box.send(1)
        server.kill()
        began = time.monotonic()
        with pytest.raises(MailboxConnectionError, match=r"0\.3 s"):
            box.send(2)
        assert time.monotonic() - began < 3


def test_a_server_that_hangs_is_not_waited_for_for_ever(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link, "PATIENCE", 0.1)
    with Standalone(binary) as server, server.client(socket_timeout=0.2) as client:
        box = Box("box", client)
        box.send(1)
        server.pause()
        with pytest.raises(MailboxConnectionError):
            box.send(2)
        server.resume()
        box.send(3)
        box.close()


# Trap 5 and 10: settings of the server


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
        eventually(lambda: blocked(server) == 1, 5, "a blocked consumer")
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


# Trap 11: long polls


def test_a_long_poll_outlasts_the_socket_timeout(server: Standalone) -> None:
    with server.client(socket_timeout=0.2) as client:
        box: Box = Box("box", client, reaper_interval=1.0)
        assert box.receive(wait_time_seconds=1.5) == []
        box.close()


def test_blocked_consumers_starve_nobody(server: Standalone) -> None:
    with server.client(max_connections=2) as client, Box("box", client) as box:
        threads = [
            threading.Thread(target=box.receive, kwargs={"wait_time_seconds": 30})
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: blocked(server) == 10, 10, "ten blocked consumers")
        box.stats()
        box.close()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()


def test_blocked_async_consumers_occupy_no_thread(server: Standalone) -> None:
    async def scenario(box: Box) -> None:
        waiting = [
            asyncio.ensure_future(box.receive_async(wait_time_seconds=30)) for _ in range(100)
        ]
        while blocked(server) < 100:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(box.send_async("work"), 5)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        assert len(done) == 1
        box.close()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    with server.client() as client, Box("box", client) as box:
        asyncio.run(scenario(box))


def blocked(server: Standalone) -> int:
    return int(server.info("clients")["blocked_clients"])


def receive_into(got: list[Any], box: Box) -> None:
    got.extend(box.receive(wait_time_seconds=30))


def test_close_gives_back_nothing_and_loses_nothing(server: Standalone, client: Any) -> None:
    """Whatever a blocked consumer had leased when it was closed is handed out, not forgotten."""
    for _ in range(20):
        box = Box("box", client)
        got: list[Any] = []
        waiting = threading.Thread(target=receive_into, args=(got, box))
        waiting.start()
        eventually(lambda: blocked(server) == 1, 5, "a blocked consumer")
        sending = threading.Thread(target=Box("box", client).send, args=("work",))
        sending.start()
        box.close()
        waiting.join(5)
        sending.join(5)
        assert not waiting.is_alive()
        late = Box("box", client)
        assert len(got) + len(late.receive()) == 1
        late.purge()
        late.close()


def test_close_ends_a_wait_for_a_server_that_is_gone(binary: Path) -> None:
    with Standalone(binary) as server, server.client() as client:
        box = Box("box", client)
        ended = threading.Event()

        def wait() -> None:
            box.receive(wait_time_seconds=60)
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: blocked(server) == 1, 5, "a blocked consumer")
        server.kill()
        box.close()
        assert ended.wait(3)


# Trap 13: fork


def test_a_forked_child_uses_none_of_its_parents_connections(box: Box) -> None:
    box.send("before")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            box.send("from the child")
            os.write(writer, box.receive()[0].body.encode())
        finally:
            os._exit(0)
    os.close(writer)
    for _ in range(50):
        box.stats()
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "before"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [m.body for m in box.receive(max_messages=5)] == ["from the child"]


# Commands


def test_packing_is_the_same_with_and_without_hiredis() -> None:
    parts = (b"EVALSHA", "h\u00e4ndle", 5, 0, b"", "x" * 2000)
    assert packing._packed(parts) == packing.packed(parts) == packing.pack(*parts)


# Clients


def test_strange_clients_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="client must be a Redis"):
        RedisMailbox("box", object())


def test_a_client_of_replicas_is_refused(shared_trio: Any) -> None:
    from redis.sentinel import Sentinel

    managed: Any = Sentinel(shared_trio.sentinels)
    with pytest.raises(InvalidParameterError, match="master_for"):
        RedisMailbox("box", managed.slave_for(shared_trio.service_name))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_may_outlive_its_event_loop(server: Standalone) -> None:
    client = clients.standalone(server, awaited=True)
    box = Box("box", client)
    asyncio.run(box.send_async(1))

    async def again() -> list[Any]:
        found = await box.receive_async()
        await clients.close(client)
        return [m.body for m in found]

    assert asyncio.run(again()) == [1]
    gc.collect()  # now, while this test excuses what the first loop left open


def test_a_cancelled_send_spoils_no_connection(server: Standalone) -> None:
    async def scenario() -> None:
        client = clients.standalone(server, awaited=True)
        box = Box("box", client)
        await box.send_async("warm")
        for _ in range(20):
            sending = asyncio.ensure_future(box.send_async("cancelled"))
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await box.purge_async()
        await box.send_async("whole")
        assert [m.body for m in await box.receive_async(max_messages=10)] == ["whole"]
        await clients.close(client)

    asyncio.run(scenario())


def test_a_message_lost_to_another_is_refused_by_its_own_name(box: Box, server: Standalone) -> None:
    box.send("work")
    (message,) = box.receive(visibility_timeout=0.05)
    let_pass(server, 0.1)
    with pytest.raises(ReceiptHandleExpiredError):
        message.acknowledge()
