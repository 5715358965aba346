"""What happens when the server or the network fails in the middle of something."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MovedError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

from testkit import redis_clients as clients
from testkit.proxy import Direction, Proxy
from testkit.servers import Standalone
from testkit.waiting import eventually
from tests.backends.redis.seeds import let_pass
from weakincentives.contrib.mailbox.redis import RedisMailbox, retries
from weakincentives.contrib.mailbox.redis.errors import Cure, verdict
from weakincentives.contrib.mailbox.redis.retries import backoff
from weakincentives.runtime.mailbox import MailboxConnectionError, ReceiptHandleExpiredError
from weakincentives.runtime.mailbox.testing import driven

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
        (InvalidResponse("Protocol error, got '?' as reply type byte"), Cure.SEEK, True),
        (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), Cure.FULL, False),
        (AuthenticationError("invalid username-password pair"), Cure.GIVE_UP, False),
        (ResponseError("WRONGTYPE Operation against a key"), Cure.MEND, False),
        (ResponseError("ERR wrong number of arguments"), Cure.GIVE_UP, False),
    ],
    ids=lambda value: value.__class__.__name__ if isinstance(value, Exception) else None,
)
def test_verdicts(error: Exception, cure: Cure, unknown: bool) -> None:
    judged = verdict(error)
    assert (judged.cure, judged.may_have_run) == (cure, unknown)
    if cure in (Cure.GO, Cure.ASK):
        assert judged.address in {("127.0.0.1", 6381), ("::1", 6381)}


def test_backoff_is_bounded_and_varies() -> None:
    assert backoff(1) == 0
    assert all(0 < backoff(n) <= 0.5 for n in range(2, 40))
    assert len({backoff(5) for _ in range(10)}) > 1


def test_idle_connections_that_were_cut_are_replaced(far: Box, proxy: Proxy) -> None:
    far.send(1)
    proxy.cut_all()
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
    listening.join(60)
    assert not listening.is_alive()


BUSY = (
    "local t = redis.call('TIME') local ends = t[1] * 1000 + t[2] / 1000 + 500 repeat "
    "t = redis.call('TIME') until t[1] * 1000 + t[2] / 1000 > ends return 1"
)


def is_busy(server: Standalone) -> bool:
    try:
        server.command("GET", "nothing")
    except ResponseError as error:
        return str(error).startswith("BUSY")
    return False


@contextmanager
def busy(server: Standalone) -> Iterator[None]:
    server.command("CONFIG", "SET", "busy-reply-threshold", 10)
    running = threading.Thread(target=server.command, args=("EVAL", BUSY, 0))
    running.start()
    eventually(lambda: is_busy(server), 10, "a busy server")
    yield
    running.join()


def test_a_busy_server_is_waited_for(box: Box, server: Standalone) -> None:
    box.send(1)
    with busy(server):
        box.send(2)
    assert box.approximate_count() == 2


@pytest.mark.parametrize("lease", [5, 30], ids=["timed", "not timed"])
def test_a_busy_server_is_waited_for_by_one_who_listens(
    box: Box, server: Standalone, lease: int
) -> None:
    box.send(1)
    listener = box.store.listen()
    with busy(server):
        (leased,) = driven(listener.lease(1, lease, 5.0)).messages
    assert all(driven(box.store.acknowledge([leased.handle])))


def test_a_garbled_answer_is_a_broken_connection(server: Standalone) -> None:
    """One pooled connection answers with what is no RESP; the next call has a new one."""
    with Babbler(server.port) as babbler, redis.Redis(port=babbler.port) as client:
        box = Box("box", client)
        box.send(1)
        for step in (lambda: box.send(2), lambda: box.receive()[0].acknowledge()):
            babbler.babbles = True
            assert step()
        assert not babbler.babbles
        box.close()


class Babbler(Proxy):
    """Answers one request with something else than RESP."""

    babbles = False

    def _loses(self, link: Any, direction: Direction, data: bytes) -> bool:
        if not self.babbles or direction == "request":
            return super()._loses(link, direction, data)
        self.babbles = False
        link.client.sendall(b"?HTTP/1.1 502 Bad Gateway\r\n\r\n")
        return True


NO_DESCRIPTORS = """
import os, resource, sys
import redis
from weakincentives.contrib.mailbox.redis import RedisMailbox, retries
from weakincentives.runtime.mailbox import MailboxConnectionError

retries.RETRY_SECONDS = 0.3
box = RedisMailbox("box", redis.Redis(port=int(sys.argv[1])))
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
try:
    box.send(1)
except MailboxConnectionError as error:
    print("refused", error)
for one in taken:
    os.close(one)
box.send(2)
"""


def test_a_process_without_descriptors_tries_again_and_says_so(server: Standalone) -> None:
    child = subprocess.run(
        [sys.executable, "-c", NO_DESCRIPTORS, str(server.port)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert child.returncode == 0, child.stderr
    assert "Too many open files" in child.stdout


@pytest.mark.parametrize("wait", [0, 20])
@pytest.mark.parametrize("awaited", [False, True], ids=["threads", "asyncio"])
def test_a_cancelled_receive_does_not_wait_for_a_server_that_is_gone(
    binary: Path, monkeypatch: pytest.MonkeyPatch, awaited: bool, wait: int
) -> None:
    monkeypatch.setattr(retries, "RETRY_SECONDS", 60.0)

    async def scenario(server: Standalone) -> None:
        client = clients.standalone(server, awaited=awaited)
        box = Box("box", client)
        await box.send_async(1)
        server.kill()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await box.receive_async(wait_time_seconds=wait)
        if awaited:
            await clients.close(client)

    with Standalone(binary) as server:
        began = time.monotonic()
        asyncio.run(scenario(server))
        assert time.monotonic() - began < 30


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
        waiting.join(60)
        assert [m.body for m in got] == [2]
        assert held[0].acknowledge()
        box.close()


def test_patience_has_an_end(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "RETRY_SECONDS", 0.3)
    with Standalone(binary) as server, server.client() as client, Box("box", client) as box:
        box.send(1)
        server.kill()
        began = time.monotonic()
        with pytest.raises(MailboxConnectionError, match=r"0\.3 s"):
            box.send(2)
        assert time.monotonic() - began < 10


def test_a_server_that_hangs_is_not_waited_for_for_ever(
    binary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "RETRY_SECONDS", 0.1)
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
