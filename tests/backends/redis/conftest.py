"""An empty server, a mailbox on it, and one behind a proxy."""

from collections.abc import Iterator
from typing import Any

import pytest
import redis

from testkit.proxy import Proxy
from testkit.servers import Standalone
from tests.services import on_each_flavour as pytest_generate_tests
from weakincentives.contrib.mailbox.redis import RedisMailbox

__all__ = ["pytest_generate_tests"]


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
