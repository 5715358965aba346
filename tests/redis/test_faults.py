"""What happens when the server or the network fails in the middle of something."""

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

from tests.redis.proxy import Proxy
from tests.redis.seeds import let_pass
from tests.servers import Standalone
from weakincentives.contrib.mailbox.redis import RedisMailbox, link
from weakincentives.contrib.mailbox.redis.faults import Cure, backoff, verdict
from weakincentives.runtime.mailbox import (
    MailboxConnectionError,
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


def test_a_message_lost_to_another_is_refused_by_its_own_name(box: Box, server: Standalone) -> None:
    box.send("work")
    (message,) = box.receive(visibility_timeout=0.05)
    let_pass(server, 0.1)
    with pytest.raises(ReceiptHandleExpiredError):
        message.acknowledge()
