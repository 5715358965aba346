"""From a URL to mailboxes on every topology."""

import shutil
import time
import traceback
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from testkit import redis_clients as clients
from testkit.servers import Cluster, SentinelTrio, Standalone, supports_tls
from tests.services import missing
from weakincentives import connect
from weakincentives.contrib.mailbox.contract.driver import Driver, Face, Proxy
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis.client import script_client
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
)
from weakincentives.runtime.mailbox.seam.optional_protocols import backend_of


def use(url: str) -> str:
    """Send, list, receive and reply; return what the backend calls itself."""
    with connect(url) as backend:
        box = backend.mailbox("orders", body_type=int)
        box.purge()
        box.send(1)
        assert "orders" in backend.queues()
        (message,) = box.receive()
        assert message.body == 1
        message.acknowledge()
        reply = box.send_expecting_reply(2)
        (message,) = backend.create("orders").receive()
        message.reply(None)
        assert reply.wait(timeout=120) is None
        assert backend.reply_store().get(reply.id) is None
    with pytest.raises(MailboxClosedError):
        backend.mailbox("orders")
    with pytest.raises(MailboxClosedError):
        box.send(2)
    return repr(backend)


def test_standalone(server: Standalone) -> None:
    use(f"redis://127.0.0.1:{server.port}/3?socket_timeout=2")
    assert server.command("DBSIZE") == 0  # it was database 3


def test_user_and_password(binary: Path) -> None:
    users = {"default": "off", "app": "on >s3cret ~* +@all"}
    with Standalone(binary, users=users) as server:
        shown = use(f"redis://app:s3cret@127.0.0.1:{server.port}")
        assert "s3cret" not in shown
        assert "app" not in shown
        with (
            connect(f"redis://app:s4cret@127.0.0.1:{server.port}") as backend,
            pytest.raises(MailboxConnectionError) as caught,
        ):
            backend.mailbox("orders").send(1)
        assert "s4cret" not in str(caught.value)


def test_tls(binary: Path) -> None:
    if not supports_tls(binary):
        pytest.skip("this server was built without TLS")
    if shutil.which("openssl") is None:
        missing("there is no openssl command to make a certificate with")
    with Standalone(binary, tls=True) as server:
        use(server.url)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_a_certificate_that_is_not_trusted_is_told_at_once(binary: Path, face: Face) -> None:
    if not supports_tls(binary):
        pytest.skip("this server was built without TLS")
    if shutil.which("openssl") is None:
        missing("there is no openssl command to make a certificate with")
    driver = Driver(face)
    with Standalone(binary, tls=True) as server:
        client = clients.standalone(server, awaited=face == "async", ssl=True, ssl_ca_certs=None)
        box: Any = Proxy(RedisMailbox("orders", client), driver)
        began = time.monotonic()
        with pytest.raises(MailboxConnectionError, match="CERTIFICATE_VERIFY_FAILED"):
            box.send(1)
        assert time.monotonic() - began < 10
    driver.close()


def test_sentinel(shared_trio: SentinelTrio) -> None:
    hosts = ",".join(f"{host}:{port}" for host, port in shared_trio.sentinels)
    use(f"redis+sentinel://{hosts}/{shared_trio.service_name}/0?min_replicas=1")
    use(f"redis+sentinel://{hosts}/{shared_trio.service_name}")


def test_cluster(shared_cluster: Cluster) -> None:
    host, port = shared_cluster.startup_nodes[0]
    use(f"redis+cluster://{host}:{port}")


def test_queues_of_a_cluster_are_found_on_all_nodes(shared_cluster: Cluster) -> None:
    host, port = shared_cluster.startup_nodes[0]
    with connect(f"redis+cluster://{host}:{port}") as backend:
        names = [f"spread-{number}" for number in range(20)]
        for name in names:
            backend.mailbox(name).send(1)
        assert set(names) <= set(backend.queues())
        for name in names:
            backend.mailbox(name).purge()


def test_queues_hang_together_if_they_are_on_one_server(
    shared_server: Standalone, shared_cluster: Cluster
) -> None:
    host, port = shared_cluster.startup_nodes[0]
    with connect(shared_server.url) as alone, connect(f"redis+cluster://{host}:{port}") as spread:
        places = []
        for backend in (alone, spread):
            boxes = [backend.mailbox(f"place-{number}") for number in range(20)]
            for box in boxes:
                box.send(1)
            places.append({id(backend_of(box.store)) for box in boxes})
            for box in boxes:
                box.purge()
    assert [len(ids) for ids in places] == [1, len(shared_cluster.shards)]
    assert not places[0] & places[1]


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://secret@host:1",
        "redis+sentinel://u:secret@host:1/master/first",
        "redis+cluster://u:secret@127.0.0.1:1/3",
        "redis://u:secret@host/0?min_replicas=many",
        "redis://u:secret@host:port/0",
        "redis://u:secret@host/first",
    ],
)
def test_urls_that_make_no_sense(url: str) -> None:
    with pytest.raises(InvalidParameterError) as caught:
        connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+sentinel", "redis+cluster"])
@pytest.mark.parametrize(
    "password", ["12#secret", "12?secret", "secret#1", "secret?a=b", "1/secret"]
)
def test_a_password_that_should_have_been_quoted_is_not_told(scheme: str, password: str) -> None:
    for credentials in (f":{password}", f"app:{password}", password):
        with pytest.raises(InvalidParameterError, match="%23") as caught:
            connect(f"{scheme}://{credentials}@127.0.0.1:1/0")
        assert "secret" not in "".join(traceback.format_exception(caught.value))


def test_a_password_with_everything_in_it_can_be_quoted(binary: Path) -> None:
    password = "a#b?c/d@e:f%g"
    users = {"default": f"on >{password} ~* +@all"}
    with Standalone(binary, users=users) as server:
        use(f"redis://:{quote(password, safe='')}@127.0.0.1:{server.port}")


def test_a_server_that_is_not_there() -> None:
    with connect("redis://127.0.0.1:1") as backend, pytest.raises(MailboxConnectionError):
        backend.queues()


def test_a_closed_backend_makes_no_more_connections(server: Standalone) -> None:
    with connect(f"redis://127.0.0.1:{server.port}") as backend:
        box = backend.mailbox("orders")
        box.send(1)
    for step in (box.approximate_count, backend.queues):
        with pytest.raises(MailboxClosedError):
            step()


def test_a_cluster_that_is_not_there() -> None:
    with pytest.raises(MailboxConnectionError) as caught:
        connect("redis+cluster://u:secret@127.0.0.1:1")
    assert "secret" not in str(caught.value)


def test_min_replicas_in_the_url(server: Standalone) -> None:
    with (
        connect(f"{server.url}?min_replicas=1") as backend,
        pytest.raises(MailboxConnectionError, match="0 of 1"),
    ):
        backend.mailbox("orders").send(1)


def test_a_backend_closes_its_connections(server: Standalone) -> None:
    before = int(server.info("clients")["connected_clients"])
    backend: Any = connect(server.url)
    box = backend.mailbox("orders")
    box.send(1)
    assert list(script_client(backend._client).pool.users) == [box]
    backend.close()
    assert int(server.info("clients")["connected_clients"]) <= before
