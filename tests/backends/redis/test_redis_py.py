"""What we use of redis-py beyond its documented interface is there, in old and new versions."""

import ast
import asyncio
import inspect
import os
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel

from testkit.servers import Standalone
from weakincentives.contrib.mailbox.redis import redis_py

PACKAGE = Path(redis_py.__file__).parent
ROOT = Path(__file__).parents[3]
PRIVATE = {"_force_master_ip", "_reader", "_sock", "_writer"}
INNER = {
    redis.Connection: {"connect", "disconnect", "read_response", "send_packed_command"},
    redis.asyncio.Connection: {"connect", "read_response", "send_packed_command"},
    redis.RedisCluster: {"get_nodes", "get_redis_connection"},
}


def private_names(path: Path) -> set[str]:
    """Return the private attributes of others that a module uses."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z]", node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                found.add(node.attr)
        elif isinstance(node, ast.Constant) and re.fullmatch(r"_[a-z_]+", str(node.value)):
            found.add(str(node.value))
    return found


def test_these_are_all_that_are_used() -> None:
    assert private_names(PACKAGE / "redis_py.py") == PRIVATE


def test_no_other_module_uses_one() -> None:
    modules = [path for path in PACKAGE.glob("*.py") if path.name != "redis_py.py"]
    assert {path.name: names for path in modules if (names := private_names(path) & PRIVATE)} == {}


@pytest.mark.parametrize("kind", INNER, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_the_inner_methods_exist(kind: type) -> None:
    assert {name for name in INNER[kind] if not callable(getattr(kind, name, None))} == set()


def test_a_blocking_connection_has_its_socket(server: Standalone) -> None:
    connection = redis.Connection(host="127.0.0.1", port=server.port)
    assert redis_py.socket_of(connection) is None
    connection.connect()
    assert isinstance(redis_py.socket_of(connection), socket.socket)
    connection.disconnect()


def test_an_asyncio_connection_can_be_closed_at_once(server: Standalone) -> None:
    async def close() -> Any:
        connection = redis.asyncio.Connection(host="127.0.0.1", port=server.port)
        assert hasattr(connection, "_reader")
        assert hasattr(connection, "_writer")
        await connection.connect()
        writer = connection._writer
        redis_py.close_now(connection)
        assert not connection.is_connected
        return writer.is_closing()

    assert asyncio.run(close())


def test_a_read_takes_a_timeout() -> None:
    parameters = inspect.signature(redis.asyncio.Connection.read_response).parameters
    assert "timeout" in parameters


@pytest.mark.parametrize("package", [redis, redis.asyncio])
def test_the_pool_of_a_sentinel_shows_whom_it_asks(package: Any) -> None:
    sentinel = package.sentinel.Sentinel([("127.0.0.1", 1)], min_other_sentinels=2)
    pool = sentinel.master_for("name").connection_pool
    assert (pool.is_master, pool.service_name) == (True, "name")
    assert pool.sentinel_manager is sentinel
    assert sentinel.min_other_sentinels == 2
    assert len(sentinel.sentinels) == 1
    topology = redis_py.topology_of(sentinel.master_for("name"))
    assert topology.watch is not None
    assert topology.watch.fewest_others == 2


@pytest.mark.parametrize("module", [redis.cluster, redis.asyncio.cluster])
def test_a_cluster_shows_its_nodes(module: Any) -> None:
    source = inspect.getsource(module.NodesManager.__init__)
    assert "self.startup_nodes" in source
    assert "self.nodes_cache" in source
    assert "remap_host_port" in vars(module.NodesManager)


def oldest() -> str:
    """Return the lower bound that the package declares."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bound = re.fullmatch(r"redis>=([\d.]+)", project["optional-dependencies"]["redis"][0])
    assert bound is not None
    return bound[1]


@pytest.mark.full
def test_the_oldest_version_works(tmp_path: Path) -> None:
    """Run this file, and a queue's life on every client, on the oldest redis-py."""
    version = oldest()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--target", str(tmp_path), f"redis=={version}"], check=True, timeout=300)
    tests = [
        *("test_redis_py.py", "test_store.py", "test_connections.py", "test_failover.py"),
        "test_lease_keeper.py",
    ]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-m", "not full"),
            *(str(Path(__file__).with_name(name)) for name in tests),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OLDEST_REDIS_PY": version},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_the_version_is_the_one_that_was_asked_for() -> None:
    assert redis.__version__ == os.environ.get("OLDEST_REDIS_PY", redis.__version__)


SETTINGS: dict[str, Any] = {
    "client_name": "wink",
    "password": "secret",
    "socket_connect_timeout": 3.5,
    "socket_timeout": 2.5,
    "username": "app",
}
SECURE: dict[str, Any] = {"ssl": True, "ssl_cert_reqs": "none", "ssl_check_hostname": False}
CARRIED = (
    *("client_name", "credential_provider", "db", "host", "path", "port", "protocol"),
    *("socket_connect_timeout", "socket_keepalive", "socket_keepalive_options", "socket_timeout"),
    *("socket_type", "username", "password", "health_check_interval"),
)


def clients_of(package: Any, ca: str) -> dict[str, Any]:
    """Return clients of `redis` or `redis.asyncio` with all kinds of settings."""
    url = f"rediss://app:secret@h:1/3?ssl_ca_certs={ca}&socket_timeout=7"
    manager = package.sentinel.Sentinel(
        [("h", 1), ("i", 2)], sentinel_kwargs={"password": "theirs", "socket_timeout": 9}
    )
    return {
        "plain": package.Redis(host="h", port=1, db=2, socket_keepalive=True, **SETTINGS),
        "url": package.Redis.from_url("redis://h:1/4?health_check_interval=5"),
        "unix": package.Redis(unix_socket_path="/tmp/s", db=2, **SETTINGS),
        "secure": package.Redis(host="h", ssl=True, ssl_ca_certs=ca, **SETTINGS),
        "insecure": package.Redis(host="h", **SECURE, **SETTINGS),
        "secure url": package.Redis.from_url(url),
        "watched": manager.master_for("name", db=2, **SETTINGS),
        "watched securely": manager.master_for("name", ssl=True, ssl_ca_certs=ca),
    }


def settings(connection: Any) -> dict[str, Any]:
    """Return the settings of a connection, as redis-py's object keeps them."""
    found = {name: getattr(connection, name, None) for name in CARRIED}
    found["ssl"] = {
        name.removeprefix("ssl_"): getattr(connection, name)
        for name in ("cert_reqs", "check_hostname", "ca_certs", "certfile", "keyfile")
        if hasattr(connection, name)
    }
    return found


KINDS = ("plain", "url", "unix", "secure", "insecure", "secure url", "watched", "watched securely")


@pytest.mark.parametrize("kind", KINDS)
def test_a_connection_for_threads_is_as_one_of_a_blocking_client(kind: str, tmp_path: Path) -> None:
    ca = str(tmp_path / "ca.pem")
    awaited = redis_py.topology_of(clients_of(redis.asyncio, ca)[kind])
    expected = redis_py.topology_of(clients_of(redis, ca)[kind])
    assert awaited.in_threads is not None
    topology = awaited.in_threads()
    assert (topology.awaited, topology.in_threads, expected.in_threads) == (False, None, None)
    address = ("there", 9)
    made, wanted = topology.make(address), expected.make(address)
    assert type(made) is type(wanted)
    assert settings(made) == settings(wanted)
    assert (topology.watch is None) == (expected.watch is None)
    if topology.watch is not None and expected.watch is not None:
        assert topology.watch.name == expected.watch.name
        pairs = zip(topology.watch.sentinels, expected.watch.sentinels, strict=True)
        for one, other in pairs:
            assert settings(one.make()) == settings(other.make())


def test_the_nodes_of_a_cluster_are_known_to_threads() -> None:
    client = redis.asyncio.RedisCluster(
        host="h", port=1, address_remap=lambda at: ("r", at[1]), password="secret", ssl=True
    )
    awaited = redis_py.topology_of(client)
    assert awaited.in_threads is not None
    assert awaited.seeds is not None
    topology = awaited.in_threads()
    assert topology.seeds is not None
    assert topology.remap is not None
    assert topology.seeds() == awaited.seeds() == [("h", 1)]
    assert topology.remap(("a", 5)) == ("r", 5)
    connection = topology.make(("there", 9))
    assert type(connection) is redis.SSLConnection
    assert (connection.host, connection.port, connection.password) == ("there", 9, "secret")
