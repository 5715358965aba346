"""The history of a client whose answers get lost."""

from pathlib import Path

import pytest
from chaos.history import Log, read
from chaos.proxy import HOST, Proxy
from chaos.recording import recorded
from chaos.snapshots import of_redis

import redis
from chaos import checkers
from tests.servers import Standalone, servers_available
from tests.services import missing
from weakincentives.contrib.mailbox import RedisMailbox
from weakincentives.contrib.mailbox.redis import queue
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError


def test_an_ack_repeated_after_its_lease_is_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binaries = list(servers_available().values())
    if not binaries:
        missing("neither redis-server nor valkey-server was found")
    log, usual = Log(tmp_path, "client"), queue.monotonic
    with (
        Standalone(binaries[0]) as server,
        Proxy(server.port) as proxy,
        redis.Redis(host=HOST, port=proxy.port) as client,
        server.client() as direct,
    ):
        box = recorded(RedisMailbox("jobs", client), log)
        box.send_batch(["x", "y"])
        first, message = box.receive(max_messages=2, visibility_timeout=30)
        first.acknowledge()  # the server knows the script from now on
        monkeypatch.setattr(queue, "monotonic", lambda: usual() + 60)  # the failover took a minute
        proxy.drop_reply()
        with pytest.raises(ReceiptHandleExpiredError):
            message.acknowledge()
        left = of_redis(direct, "jobs")
        box.close()
    log.close()
    assert left.ids == set()
    assert checkers.lost(read(tmp_path), left.ids) == []
