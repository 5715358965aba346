"""The history of a client whose answers get lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from chaos import checkers
from chaos.history import Log, read
from chaos.recording import recorded
from chaos.snapshots import of_redis
from testkit.ports import HOST
from testkit.proxy import Proxy
from testkit.servers import Standalone, servers_available
from tests.services import missing
from weakincentives.contrib.mailbox import RedisMailbox
from weakincentives.contrib.mailbox.redis import queue
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError


@pytest.fixture
def server() -> Iterator[Standalone]:
    binaries = list(servers_available().values())
    if not binaries:
        missing("neither redis-server nor valkey-server was found")
    with Standalone(binaries[0]) as started:
        yield started


def a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the client believe that repeating the call took so long that no lease is left."""
    usual = queue.monotonic
    monkeypatch.setattr(queue, "monotonic", lambda: usual() + 60)


def test_an_ack_repeated_after_its_lease_is_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Standalone
) -> None:
    log = Log(tmp_path, "client")
    with (
        Proxy(server.port) as proxy,
        redis.Redis(host=HOST, port=proxy.port) as client,
        server.client() as direct,
    ):
        box = recorded(RedisMailbox("jobs", client), log)
        box.send_batch(["x", "y"])
        first, message = box.receive(max_messages=2, visibility_timeout=30)
        first.acknowledge()  # the server knows the script from now on
        a_minute_later(monkeypatch)
        proxy.drop_reply()
        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        left = of_redis(direct, "jobs")
        box.close()
    log.close()
    assert left.ids == set()
    assert checkers.lost(read(tmp_path), left.ids) == []


def test_a_nack_repeated_after_its_lease_may_have_given_the_message_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Standalone
) -> None:
    log = Log(tmp_path, "client")
    with (
        Proxy(server.port) as proxy,
        redis.Redis(host=HOST, port=proxy.port) as client,
    ):
        box = recorded(RedisMailbox("jobs", client), log)
        box.send_batch(["x", "y"])
        first, message = box.receive(max_messages=2, visibility_timeout=30)
        first.nack(visibility_timeout=20)  # the server knows the script from now on
        a_minute_later(monkeypatch)
        proxy.drop_reply()
        with pytest.raises(ReceiptHandleExpiredError):
            message.nack()
        (again,) = box.receive(visibility_timeout=30)
        assert again.id == message.id
        box.close()
    log.close()
    assert checkers.fenced(read(tmp_path)) == []
