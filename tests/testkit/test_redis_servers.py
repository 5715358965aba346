"""The servers that other tests rely on start, misbehave as told, and leave nothing behind."""

import shutil
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, OutOfMemoryError
from redis.retry import Retry

from testkit.ports import HOST
from testkit.processes import alive
from testkit.servers import (
    Cluster,
    SentinelTrio,
    Server,
    ServerError,
    Standalone,
    servers_available,
    supports_tls,
)
from testkit.waiting import eventually
from tests.services import missing

SERVERS = servers_available()
NEVER = Retry(NoBackoff(), 0)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="ports are only held on Linux")


@pytest.fixture(scope="module", params=SERVERS.values(), ids=list(SERVERS))
def binary(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


@pytest.fixture(scope="module")
def trio(binary: Path) -> Iterator[SentinelTrio]:
    with SentinelTrio(binary) as trio:
        servers = trio.nodes + trio.sentinel_servers
        yield trio
    assert_nothing_left(servers)


@pytest.fixture(scope="module")
def cluster(binary: Path) -> Iterator[Cluster]:
    with Cluster(binary) as cluster:
        servers = cluster.nodes
        yield cluster
    assert_nothing_left(servers)


def assert_nothing_left(servers: list[Server]) -> None:
    assert servers
    for server in servers:
        assert not alive(server.pid)
        assert not server.directory.exists()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, server.port))


# Finding servers


def test_the_forced_binary_is_the_only_one(binary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINK_REDIS_SERVER", str(binary))
    assert list(servers_available().values()) == [binary]


def test_a_forced_binary_must_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINK_REDIS_SERVER", "no-such-server")
    with pytest.raises(FileNotFoundError, match="no-such-server"):
        servers_available()


# Standalone


def test_standalone_serves_until_stopped(binary: Path) -> None:
    began = time.monotonic()
    with Standalone(binary) as server:
        took = time.monotonic() - began
        with server.client() as client, redis.from_url(server.url) as by_url:
            client.set("key", "value")
            assert by_url.get("key") == b"value"
    assert_nothing_left([server])
    server.stop()
    assert took < 20


def test_standalone_stops_when_the_test_fails(binary: Path) -> None:
    with pytest.raises(ZeroDivisionError), Standalone(binary) as server:
        raise ZeroDivisionError
    assert_nothing_left([server])


def test_a_server_that_does_not_start_says_why_and_leaves_nothing(binary: Path) -> None:
    server = Standalone(binary, directives=["no-such-directive 1"])
    with pytest.raises(ServerError, match="no-such-directive"):
        server.start()
    assert_nothing_left([server])


def test_killed_without_a_file_it_forgets(binary: Path) -> None:
    with Standalone(binary) as server:
        server.command("SET", "key", "value")
        first = server.pid
        server.kill()
        assert not server.running
        assert not alive(first)
        server.restart()
        assert server.pid != first
        assert server.command("GET", "key") is None


@pytest.mark.parametrize("kill", [True, False])
def test_with_appendonly_it_remembers(binary: Path, kill: bool) -> None:
    with Standalone(binary, appendonly="always") as server:
        port = server.port
        server.command("SET", "key", "value")
        if kill:
            server.kill()
        server.restart()
        assert server.port == port
        assert server.command("GET", "key") == "value"


def test_paused_it_accepts_and_does_not_answer(binary: Path) -> None:
    with Standalone(binary) as server:
        server.pause()
        assert server.running
        assert not server.responsive
        client = server.client(socket_timeout=0.1, retry=NEVER)
        with client, pytest.raises(redis.exceptions.TimeoutError):
            client.ping()
        server.resume()
        assert server.command("PING") == "PONG"
        server.pause()
        server.kill()
        server.restart()
        server.pause()
    assert_nothing_left([server])


def test_maxmemory(binary: Path) -> None:
    server = Standalone(binary, maxmemory="1", maxmemory_policy="noeviction")
    with server, pytest.raises(OutOfMemoryError):
        server.command("SET", "key", "value")


def test_users(binary: Path) -> None:
    users = {"default": "off", "app": "on >secret ~* +@all -flushall"}
    with Standalone(binary, users=users) as server:
        with pytest.raises(AuthenticationError):
            server.command("PING")
        with server.client(username="app", password="secret") as client:
            client.set("key", "value")
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.flushall()


def test_tls(binary: Path) -> None:
    if shutil.which("openssl") is None:
        missing("there is no openssl command to make a certificate with")
    if not supports_tls(binary):
        with pytest.raises(ServerError, match="TLS"):
            Standalone(binary, tls=True).start()
        pytest.skip("built without TLS")
    with Standalone(binary, tls=True) as server, redis.from_url(server.url) as client:
        client.set("key", "value")
        assert server.command("GET", "key") == "value"
        plain = redis.Redis(port=server.port, retry=NEVER)
        with plain, pytest.raises(redis.exceptions.ConnectionError):
            plain.ping()


@on_linux
def test_ports_are_kept_while_the_server_is_down(binary: Path) -> None:
    with Standalone(binary) as server:
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((HOST, server.port))
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((HOST, server.port))
        server.restart()
        assert server.command("PING") == "PONG"


# Sentinels


def test_a_trio_serves(trio: SentinelTrio) -> None:
    with trio.client() as client:
        client.set("key", "value")
        assert client.wait(2, 5000) == 2
        assert client.get("key") == b"value"
    assert len(trio.sentinels) == 3
    assert len(trio.replicas()) == 2


def test_a_trio_fails_over_from_a_killed_primary(trio: SentinelTrio) -> None:
    old = trio.kill_primary()
    new = trio.wait_for_failover(old)
    assert new is trio.primary() is not old
    with trio.client() as client:
        client.set("after", "kill")
    trio.revive(old)
    assert old in trio.replicas()
    eventually(lambda: old.command("GET", "after") == "kill", 60, "the old primary to follow")


def test_a_trio_fails_over_from_a_paused_primary(trio: SentinelTrio) -> None:
    old = trio.primary()
    old.pause()
    assert trio.wait_for_failover(old) is not old
    trio.revive(old)
    assert old in trio.replicas()


def test_a_trio_fails_over_when_told(trio: SentinelTrio) -> None:
    for _ in range(2):
        old = trio.primary()
        with trio.client() as client:
            client.set("key", old.port)
            client.wait(2, 5000)
            new = trio.failover()
            assert new is not old
            assert client.get("key") == str(old.port).encode()


def test_a_trio_fails_over_without_one_sentinel(trio: SentinelTrio) -> None:
    lost = trio.sentinel_servers[0]
    lost.kill()
    old = trio.kill_primary()
    trio.wait_for_failover(old)
    trio.revive(lost)
    trio.revive(old)
    assert all(server.responsive for server in trio.nodes + trio.sentinel_servers)


def test_a_trio_can_have_another_number_of_replicas(binary: Path) -> None:
    with SentinelTrio(binary, replicas=1) as trio:
        assert len(trio.nodes) == 2


# Clusters


def another_primary(cluster: Cluster, node: Server) -> Server:
    return next(cluster.primary_of(shard[0]) for shard in cluster.shards if node not in shard)


def test_a_cluster_serves(cluster: Cluster) -> None:
    with cluster.client() as client:
        for n in range(100):
            client.set(f"key {n}", n)
        assert [client.get(f"key {n}") for n in range(100)] == [b"%d" % n for n in range(100)]
    owners = {cluster.node_for_key(f"key {n}") for n in range(100)}
    assert len(owners) == 3
    assert len(cluster.startup_nodes) == 6
    assert cluster.node_for_key("key 1").command("GET", "key 1") == "1"


def test_a_cluster_fails_over_from_a_killed_primary(cluster: Cluster) -> None:
    old = cluster.node_for_key("key")
    cluster.kill(old)
    new = cluster.wait_for_failover(old)
    assert new is cluster.node_for_key("key") is not old
    with cluster.client() as client:
        client.set("key", "after kill")
    cluster.revive(old)
    assert cluster.primary_of(old) is new


def test_a_cluster_fails_over_when_told(cluster: Cluster) -> None:
    for n in range(3):
        old = cluster.node_for_key("key")
        with cluster.client() as client:
            client.set("key", n)
            new = cluster.failover(old)
            assert new is cluster.node_for_key("key") is not old
            assert new in cluster.replicas_of(old)
            assert client.get("key") == b"%d" % n


def test_a_cluster_migrates_a_slot(cluster: Cluster) -> None:
    source = cluster.node_for_key("{tag}")
    slot = source.command("CLUSTER", "KEYSLOT", "{tag}")
    target = another_primary(cluster, source)
    with cluster.client() as client:
        for n in range(250):
            client.set(f"{{tag}}{n}", n)
        client.set(b"{tag}\xff", "not text")
        cluster.migrate_slot(slot, target)
        assert cluster.node_for_key("{tag}") is target
        assert source.command("CLUSTER", "COUNTKEYSINSLOT", slot) == 0
        assert client.get("{tag}249") == b"249"
        assert client.get(b"{tag}\xff") == b"not text"
    cluster.migrate_slot(slot, source)
    assert cluster.node_for_slot(slot) is source


def test_a_cluster_redirects_half_way_through_a_migration(cluster: Cluster) -> None:
    source = cluster.node_for_key("{half}")
    slot = source.command("CLUSTER", "KEYSLOT", "{half}")
    target = another_primary(cluster, source)
    source.command("MSET", "{half}1", "1", "{half}2", "2")
    cluster.open_slot(slot, target)
    assert cluster.move_keys(slot, target, count=1) == 1
    with pytest.raises(redis.ResponseError, match="Multiple keys request"):
        source.command("MGET", "{half}1", "{half}2")
    with cluster.client() as client:
        assert [client.get("{half}1"), client.get("{half}2")] == [b"1", b"2"]
    cluster.migrate_slot(slot, target)
    assert cluster.node_for_slot(slot) is target
