"""A server that hangs delays nobody else in the same event loop."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from testkit.proxy import Proxy
from testkit.servers import Cluster
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.redis import RedisMailbox, RedisReplyStore
from weakincentives.runtime.mailbox.seam.step_threads import MOST_THREADS

Box = RedisMailbox[Any, Any]
MANY = 2 * MOST_THREADS


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SQLiteMailbox[Any, Any]]:
    with SQLiteMailbox[Any, Any]("jobs", path=tmp_path / "queue.db") as box:
        yield box


async def round_trip(box: Any) -> None:
    await box.send_async("a")
    (message,) = await box.receive_async(wait_time_seconds=20)
    await message.acknowledge_async()


async def use(box: Any) -> None:
    """Use a healthy mailbox, and the event loop's own threads."""
    async with asyncio.timeout(60):
        for _ in range(3):
            await round_trip(box)
        await asyncio.to_thread(int)


async def begun(calls: list[Any]) -> list[asyncio.Task[Any]]:
    """Start calls, and wait until they have had the time to hang."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    await asyncio.sleep(0.2)
    return tasks


CALLS = {
    "send": lambda box: box.send_async("a"),
    "receive": lambda box: box.receive_async(),
    "wait": lambda box: box.receive_async(wait_time_seconds=20),
    "ask": lambda box: box.send_expecting_reply_async("a"),
}


@pytest.mark.parametrize("kind", CALLS)
def test_a_file_beside_a_server_that_hangs(
    kind: str, proxy: Proxy, far: Box, file: SQLiteMailbox[Any, Any]
) -> None:
    far.send("first")

    async def main() -> None:
        with proxy.black_hole():
            hanging = await begun([CALLS[kind](far) for _ in range(MANY)])
            await use(file)
            assert not any(task.done() for task in hanging)
            if kind == "wait":
                far.close()
        await asyncio.gather(*hanging)

    asyncio.run(main())


def test_a_file_whose_replies_are_on_a_server_that_hangs(
    proxy: Proxy, far: Box, tmp_path: Path, file: SQLiteMailbox[Any, Any]
) -> None:
    with redis.Redis(port=proxy.port) as client:
        replies = RedisReplyStore[Any](client)
        asking = SQLiteMailbox[Any, Any]("asked", path=tmp_path / "queue.db", reply_store=replies)

        async def main() -> None:
            with proxy.black_hole():
                hanging = await begun([asking.send_expecting_reply_async("a") for _ in range(MANY)])
                await use(file)
                assert not any(task.done() for task in hanging)
            await asyncio.gather(*hanging)

        asyncio.run(main())
        asking.close()


def test_other_nodes_of_a_cluster_in_which_one_hangs(shared_cluster: Cluster) -> None:
    names: dict[int, str] = {}
    for number in range(100):
        name = f"hanging-{number}"
        names.setdefault(shared_cluster.node_for_key(f"{{queue:{name}}}").port, name)
    (port, bad), (_, good), *_ = names.items()
    (node,) = [node for node in shared_cluster.nodes if node.port == port]
    with shared_cluster.client() as client:
        box, other = Box(bad, client), Box(good, client)

        async def main() -> None:
            await round_trip(box)
            await round_trip(other)
            node.pause()
            try:
                hanging = await begun([box.receive_async() for _ in range(MANY)])
                async with asyncio.timeout(60):
                    for _ in range(3):
                        await other.receive_async()
                assert not any(task.done() for task in hanging)
            finally:
                node.resume()
            await asyncio.gather(*hanging)

        asyncio.run(main())
        box.close()
        other.close()
    shared_cluster.wait_until_settled()
