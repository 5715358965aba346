"""Connections: while they block, when they close, over a fork, and of all kinds of clients."""

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.redis import clients
from tests.servers import Standalone, eventually
from weakincentives.contrib.mailbox.redis import RedisMailbox, packing
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
)

Box = RedisMailbox[Any, Any]


# Trap 11: long polls


def test_a_long_poll_outlasts_the_socket_timeout(server: Standalone) -> None:
    with server.client(socket_timeout=0.2) as client:
        box: Box = Box("box", client, reaper_interval=1.0)
        assert box.receive(wait_time_seconds=1.5) == []
        box.close()


def test_blocked_consumers_starve_nobody(server: Standalone) -> None:
    with server.client(max_connections=2) as client, Box("box", client) as box:
        threads = [
            threading.Thread(target=box.receive, kwargs={"wait_time_seconds": 30})
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: blocked(server) == 10, 10, "ten blocked consumers")
        box.stats()
        box.close()
        for thread in threads:
            thread.join(5)
            assert not thread.is_alive()


def test_blocked_async_consumers_occupy_no_thread(server: Standalone) -> None:
    async def scenario(box: Box) -> None:
        waiting = [
            asyncio.ensure_future(box.receive_async(wait_time_seconds=30)) for _ in range(100)
        ]
        while blocked(server) < 100:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(box.send_async("work"), 5)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        assert len(done) == 1
        box.close()
        await asyncio.wait_for(asyncio.gather(*waiting), 10)

    with server.client() as client, Box("box", client) as box:
        asyncio.run(scenario(box))


def blocked(server: Standalone) -> int:
    return int(server.info("clients")["blocked_clients"])


def receive_into(got: list[Any], box: Box) -> None:
    got.extend(box.receive(wait_time_seconds=30))


def test_close_gives_back_nothing_and_loses_nothing(server: Standalone, client: Any) -> None:
    """Whatever a blocked consumer had leased when it was closed is handed out, not forgotten."""
    for _ in range(20):
        box = Box("box", client)
        got: list[Any] = []
        waiting = threading.Thread(target=receive_into, args=(got, box))
        waiting.start()
        eventually(lambda: blocked(server) == 1, 5, "a blocked consumer")
        sending = threading.Thread(target=Box("box", client).send, args=("work",))
        sending.start()
        box.close()
        waiting.join(5)
        sending.join(5)
        assert not waiting.is_alive()
        late = Box("box", client)
        assert len(got) + len(late.receive()) == 1
        late.purge()
        late.close()


def test_close_ends_a_wait_for_a_server_that_is_gone(binary: Path) -> None:
    with Standalone(binary) as server, server.client() as client:
        box = Box("box", client)
        ended = threading.Event()

        def wait() -> None:
            box.receive(wait_time_seconds=60)
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: blocked(server) == 1, 5, "a blocked consumer")
        server.kill()
        box.close()
        assert ended.wait(3)


# Trap 13: fork


def test_a_forked_child_uses_none_of_its_parents_connections(box: Box) -> None:
    box.send("before")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            box.send("from the child")
            os.write(writer, box.receive()[0].body.encode())
        finally:
            os._exit(0)
    os.close(writer)
    for _ in range(50):
        box.stats()
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "before"
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [m.body for m in box.receive(max_messages=5)] == ["from the child"]


# Commands


def test_packing_is_the_same_with_and_without_hiredis() -> None:
    parts = (b"EVALSHA", "h\u00e4ndle", 5, 0, b"", "x" * 2000)
    assert packing._packed(parts) == packing.packed(parts) == packing.pack(*parts)


# Clients


def test_strange_clients_are_refused() -> None:
    with pytest.raises(InvalidParameterError, match="client must be a Redis"):
        RedisMailbox("box", object())


def test_a_client_of_replicas_is_refused(shared_trio: Any) -> None:
    from redis.sentinel import Sentinel

    managed: Any = Sentinel(shared_trio.sentinels)
    with pytest.raises(InvalidParameterError, match="master_for"):
        RedisMailbox("box", managed.slave_for(shared_trio.service_name))


@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_an_async_client_may_outlive_its_event_loop(server: Standalone) -> None:
    client = clients.standalone(server, awaited=True)
    box = Box("box", client)
    asyncio.run(box.send_async(1))

    async def again() -> list[Any]:
        found = await box.receive_async()
        await clients.close(client)
        return [m.body for m in found]

    assert asyncio.run(again()) == [1]
    gc.collect()  # now, while this test excuses what the first loop left open


def test_a_cancelled_send_spoils_no_connection(server: Standalone) -> None:
    async def scenario() -> None:
        client = clients.standalone(server, awaited=True)
        box = Box("box", client)
        await box.send_async("warm")
        for _ in range(20):
            sending = asyncio.ensure_future(box.send_async("cancelled"))
            await asyncio.sleep(0)
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)
        await box.purge_async()
        await box.send_async("whole")
        assert [m.body for m in await box.receive_async(max_messages=10)] == ["whole"]
        await clients.close(client)

    asyncio.run(scenario())
