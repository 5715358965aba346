"""A slot of a cluster on the move: queues in it go on, full or empty, wherever clients are sent."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from testkit import redis_clients as clients
from testkit.servers import Cluster
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.contract.driver import Driver, Face, Proxy, background
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis.client import script_client
from weakincentives.ids import new_id

SOON = 10.0
"""Seconds: less than a call is tried again for."""


@contextmanager
def moving(cluster: Cluster, name: str) -> Iterator[tuple[int, Any]]:
    """Begin to move the slot of a queue; it ends up where it goes."""
    source = cluster.node_for_key(f"{{queue:{name}}}")
    target = next(cluster.primary_of(shard[0]) for shard in cluster.shards if source not in shard)
    slot = source.command("CLUSTER", "KEYSLOT", f"{{queue:{name}}}")
    cluster.open_slot(slot, target)
    try:
        yield slot, target
    finally:
        while cluster.move_keys(slot, target):
            pass
        cluster.close_slot(slot, target)


def is_waited_for(server: Any) -> bool:
    return bool(server.info("clients")["blocked_clients"] == "1")


@pytest.fixture(params=["sync", "async"])
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    face: Face = request.param
    driver = Driver(face)
    yield driver
    driver.close()


@pytest.fixture
def client(shared_cluster: Cluster, driver: Driver) -> Iterator[Any]:
    awaited = driver.face == "async"
    client = clients.cluster(shared_cluster, awaited=awaited)
    if awaited:
        driver.run(client.initialize())
    yield client
    if awaited:
        driver.run(clients.close(client))
    else:
        client.close()


def test_an_empty_queue_goes_on_while_its_slot_moves(
    shared_cluster: Cluster, client: Any, driver: Driver
) -> None:
    name = f"empty-{new_id()}"
    box: Any = Proxy(RedisMailbox[Any, Any](name, client), driver)
    assert box.receive() == []
    with moving(shared_cluster, name):
        for step in (box.receive, box.stats, box.peek, box.purge):
            background(step).result(SOON)
        background(box.send, "first", message_id="chosen").result(SOON)
        background(box.send_batch, ["second", "third"], delay_seconds=0).result(SOON)
        first, second = background(box.receive, max_messages=2).result(SOON)
        assert [first.body, second.body] == ["first", "second"]
        assert background(first.acknowledge).result(SOON)
        assert background(second.nack).result(SOON)
        assert background(box.purge).result(SOON) == 2
        reply = background(box.send_expecting_reply, "question").result(SOON)
        (message,) = background(box.receive).result(SOON)
        background(message.reply, None).result(SOON)
        assert background(reply.wait, timeout=SOON).result(SOON) is None
    assert box.receive() == []


def test_a_consumer_of_an_empty_queue_waits_where_its_slot_goes_to(
    shared_cluster: Cluster, client: Any, driver: Driver
) -> None:
    """It must neither fail nor look again and again, and hear at once of what is sent."""
    name = f"empty-{new_id()}"
    box: Any = Proxy(RedisMailbox[Any, Any](name, client, reaper_interval=30), driver)
    with moving(shared_cluster, name) as (_, target):
        target.command("CONFIG", "RESETSTAT")
        waiting = background(box.receive, wait_time_seconds=20)
        eventually(lambda: is_waited_for(target), SOON, "a blocked consumer")
        box.send("work")
        (message,) = waiting.result(SOON)
        assert message.body == "work"
        assert message.acknowledge()
        calls = target.info("commandstats")["cmdstat_eval"].split(",")[0]
        assert int(calls.removeprefix("calls=")) <= 10


def test_close_ends_a_wait_where_the_slot_goes_to(
    shared_cluster: Cluster, client: Any, driver: Driver
) -> None:
    name = f"empty-{new_id()}"
    inner: RedisMailbox[Any, Any] = RedisMailbox(name, client, reaper_interval=30)
    with moving(shared_cluster, name) as (_, target):
        waiting = background(Proxy(inner, driver).receive, wait_time_seconds=60)
        eventually(lambda: is_waited_for(target), SOON, "a blocked consumer")
        driver.call(_closed, inner)
        assert waiting.result(SOON) == []


async def _closed(box: RedisMailbox[Any, Any]) -> None:
    box.close()


@pytest.mark.parametrize("redirection", ["MOVED", "ASK"])
def test_redirections_go_through_the_clients_address_remap(
    shared_cluster: Cluster, redirection: str
) -> None:
    """As behind a tunnel: the names that the nodes announce lead nowhere from here."""
    for node in shared_cluster.nodes:
        node.command("CONFIG", "SET", "cluster-announce-hostname", "nowhere.invalid")
        node.command("CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname")
    with pytest.raises(OSError):
        socket.getaddrinfo("nowhere.invalid", 1)
    name = f"remapped-{new_id()}"
    try:
        with shared_cluster.client(address_remap=lambda at: ("127.0.0.1", at[1])) as client:
            box: RedisMailbox[Any, Any] = RedisMailbox(name, client)
            box.send("before")
            with moving(shared_cluster, name) as (slot, target):
                if redirection == "ASK":
                    while shared_cluster.move_keys(slot, target):
                        pass
                    assert [m.body for m in box.receive()] == ["before"]
            if redirection == "MOVED":
                assert [m.body for m in box.receive()] == ["before"]
            assert {address[0] for address in script_client(client).pool.nodes if address} == {
                "127.0.0.1"
            }
            box.purge()
            box.close()
    finally:
        for node in shared_cluster.nodes:
            node.command("CONFIG", "SET", "cluster-preferred-endpoint-type", "ip")
            node.command("CONFIG", "SET", "cluster-announce-hostname", "")
