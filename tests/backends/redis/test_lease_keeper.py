"""Workers over mailboxes with an asyncio client: a thread keeps their leases."""

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider, UsernamePasswordCredentialProvider

from testkit import redis_clients as clients
from testkit.ports import HOST
from testkit.servers import Cluster, SentinelTrio, Standalone, supports_tls
from tests.services import missing
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.runtime import (
    LeaseExtender,
    LeaseExtenderConfig,
    UnsupportedOperationError,
    Worker,
    WorkerConfig,
)

LEASE, BLOCKED = 1.5, 3.5
OFTEN = LeaseExtenderConfig(interval=0.1)

Box = RedisMailbox[Any, Any]


async def serve(box: Box, handler: Callable[[Any], Awaitable[None]], **config: Any) -> Worker[Any]:
    """Let a worker serve one receive."""
    worker = Worker[Any](box, handler, config=WorkerConfig(**config))
    await worker.run_async(max_iterations=1, visibility_timeout=LEASE, wait_time_seconds=20)
    return worker


def connections(box: Box) -> list[Any]:
    """Return the idle connections with which threads extend leases."""
    return [one for node in box.store.client.in_threads().pool.known() for one in node.idle]


async def extended(client: Any, name: str = "kept") -> None:
    """Let a worker hold a message until its lease was extended a few times."""
    box = Box(name, client)
    await box.send_async("a")
    worker: list[Worker[Any]] = []

    async def hold(body: str) -> None:
        while worker[0].lease_extender.counters.extended < 2:
            await asyncio.sleep(0.01)

    worker.append(Worker[Any](box, hold, config=WorkerConfig(lease_extender=OFTEN)))
    async with asyncio.timeout(60):
        await worker[0].run_async(max_iterations=1, visibility_timeout=30, wait_time_seconds=20)
    assert worker[0].lease_extender.counters.failed == 0
    assert (await box.stats_async()).total == 0
    box.close()
    await clients.close(client)


def block_the_event_loop(place: Any, connect: Callable[..., Any]) -> None:
    """Let a job block the event loop for longer than its lease, and a rival ask for its message."""
    runs: list[str] = []
    stolen: list[Any] = []

    with connect(place, awaited=False) as blocking, Box("blocked", blocking) as rival:

        def steal() -> None:
            stolen.extend(rival.receive(wait_time_seconds=BLOCKED - 0.5))

        async def handle(body: str) -> None:
            runs.append(body)
            thief = threading.Thread(target=steal)
            thief.start()
            time.sleep(BLOCKED)  # as a careless handler does
            thief.join()
            await asyncio.sleep(0.5)

        async def main() -> None:
            client = connect(place, awaited=True)
            box = Box("blocked", client)
            await box.purge_async()
            await box.send_async("a")
            worker = await serve(box, handle)
            counters = worker.lease_extender.counters
            assert (counters.held, counters.lost, counters.failed) == (0, 0, 0)
            assert counters.extended >= BLOCKED / LEASE
            assert (await box.stats_async()).total == 0
            assert connections(box) == [], "the run has ended"
            box.close()
            await clients.close(client)

        asyncio.run(main())
    assert (runs, stolen) == (["a"], [])


def test_a_lease_is_kept_while_a_job_blocks_the_event_loop(server: Standalone) -> None:
    block_the_event_loop(server, clients.standalone)


def test_a_lease_is_kept_with_sentinels(shared_trio: SentinelTrio) -> None:
    block_the_event_loop(shared_trio, clients.sentinel)


def test_a_lease_is_kept_in_a_cluster(shared_cluster: Cluster) -> None:
    block_the_event_loop(shared_cluster, clients.cluster)


def test_an_extender_of_ones_own_keeps_them_too(server: Standalone) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis(port=server.port)
        async with Box("own", client) as box:
            await box.send_async("a")
            (message,) = await box.receive_async(visibility_timeout=30)
            extender = LeaseExtender(OFTEN)
            with extender.extend(message) as lease:
                async with asyncio.timeout(60):
                    while extender.counters.extended < 5:
                        await asyncio.sleep(0.01)
                assert not lease.lost
            assert await message.acknowledge_async()
            assert len(connections(box)) == 1
            await box.send_async("b")
            (message,) = await box.receive_async(visibility_timeout=30)
        assert connections(box) == []
        # A thread that was about to extend a lease leaves nothing behind.
        assert await asyncio.to_thread(box._extend_leases, [message], 60) == [True]
        assert connections(box) == []
        await clients.close(client)

    asyncio.run(main())


# --- settings that are carried over ----------------------------------------------------------

USERS = {"default": "off", "app": "on >s4cret ~* &* +@all"}


@pytest.mark.parametrize("how", ["password", "provider", "url"])
def test_user_and_password(binary: Path, how: str) -> None:
    provider = UsernamePasswordCredentialProvider("app", "s4cret")
    with Standalone(binary, users=USERS) as server:
        client = {
            "password": lambda: redis.asyncio.Redis(
                port=server.port, username="app", password="s4cret"
            ),
            "provider": lambda: redis.asyncio.Redis(port=server.port, credential_provider=provider),
            "url": lambda: redis.asyncio.from_url(f"redis://app:s4cret@{HOST}:{server.port}/3"),
        }[how]
        asyncio.run(extended(client()))


def test_the_log_tells_of_a_server_once(binary: Path, caplog: pytest.LogCaptureFixture) -> None:
    with Standalone(binary) as server:
        asyncio.run(extended(redis.asyncio.Redis(port=server.port)))
    warnings = [each for each in caplog.records if "append-only" in each.getMessage()]
    assert len(warnings) == 1


def test_tls(binary: Path) -> None:
    if not supports_tls(binary):
        pytest.skip("this server was built without TLS")
    if shutil.which("openssl") is None:
        missing("there is no openssl command to make a certificate with")
    with Standalone(binary, tls=True) as server:

        async def main() -> None:
            options = {"ssl": True, "ssl_ca_certs": str(server.certificate)}
            await extended(clients.standalone(server, awaited=True, **options))
            await extended(redis.asyncio.from_url(server.url))
            # Closing takes a few messages with TLS, for which the event loop must go on.
            async with asyncio.timeout(60):
                while (await asyncio.to_thread(server.info, "clients"))["connected_clients"] != "1":
                    await asyncio.sleep(0.01)

        asyncio.run(main())


@pytest.fixture
def socket_path(tmp_path: Path) -> str:
    # The path of a socket may have about a hundred characters, and a temporary one can have more.
    with socket.socket(socket.AF_UNIX) as probe:
        path = str(tmp_path / "s")
        try:
            probe.bind(path)
        except OSError:
            pytest.skip("the temporary directory is too deep for a socket")
    Path(path).unlink()
    return path


def test_a_unix_socket(binary: Path, socket_path: str) -> None:
    with Standalone(binary, directives=[f"unixsocket {socket_path}"]):
        asyncio.run(extended(redis.asyncio.Redis(unix_socket_path=socket_path, db=2)))


# --- settings that cannot be -----------------------------------------------------------------


class OwnConnection(redis.asyncio.Connection):
    """What users write to add a setting of theirs."""


class AsyncOnlyProvider(CredentialProvider):
    """Asks a server for a token, and only the asynchronous way."""

    async def get_credentials_async(self) -> Any:
        return ("app", "s4cret")


class CoroutineProvider:
    async def get_credentials(self) -> Any:
        return ("app", "s4cret")


class OwnParser(redis.asyncio.connection.DefaultParser):  # type: ignore[misc, valid-type]
    """Reads what another server says."""


def own_pool(server: Standalone, **options: Any) -> Any:
    pool = redis.asyncio.ConnectionPool(host=HOST, port=server.port, **options)
    return redis.asyncio.Redis(connection_pool=pool)


def own_sentinel(server: Standalone) -> Any:
    manager = clients._managed([(HOST, server.port)])
    return manager.master_for("name", connection_class=OwnManagedConnection)


class OwnManagedConnection(redis.asyncio.sentinel.SentinelManagedConnection):
    """What users write to add a setting of theirs."""


REFUSED: dict[str, tuple[Callable[[Standalone], Any], str]] = {
    "class": (lambda s: own_pool(s, connection_class=OwnConnection), "OwnConnection"),
    "managed class": (own_sentinel, "OwnManagedConnection"),
    "provider": (
        lambda s: own_pool(s, credential_provider=AsyncOnlyProvider()),
        "AsyncOnlyProvider",
    ),
    "coroutine": (
        lambda s: own_pool(s, credential_provider=CoroutineProvider()),
        "CoroutineProvider",
    ),
    "parser": (lambda s: own_pool(s, parser_class=OwnParser), "parser_class=OwnParser"),
    "unknown": (lambda s: own_pool(s, colour="red"), "colour"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_worker_refuses_to_start_and_says_why(kind: str, server: Standalone) -> None:
    make, named = REFUSED[kind]

    async def handle(body: str) -> None:
        raise AssertionError("nothing is leased")

    async def main() -> None:
        with Box("refused", server.client()) as other:
            other.send("a")
            box = Box("refused", make(server))
            with pytest.raises(UnsupportedOperationError, match=named) as caught:
                await serve(box, handle)
            assert "blocking connection" in str(caught.value)
            assert "s4cret" not in str(caught.value)
            assert (other.stats().pending, other.stats().in_flight) == (1, 0)
            box.close()

    asyncio.run(main())


def test_it_starts_if_no_lease_is_to_be_extended(server: Standalone) -> None:
    done: list[str] = []

    async def handle(body: str) -> None:
        done.append(body)

    async def main() -> None:
        client = own_pool(server, connection_class=OwnConnection)
        async with Box("alone", client) as box:
            await box.send_async("a")
            await serve(box, handle, lease_extender=LeaseExtenderConfig(enabled=False))
        await clients.close(client)

    asyncio.run(main())
    assert done == ["a"]


def test_a_plain_handler_is_refused(server: Standalone) -> None:
    box = Box("plain", redis.asyncio.Redis(port=server.port))
    with pytest.raises(UnsupportedOperationError, match="needs an async handler"):
        Worker[Any](box, print).run(max_iterations=1)
    box.close()
