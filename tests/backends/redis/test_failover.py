"""Producers and consumers under load while the primary changes."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from testkit import redis_clients as clients
from testkit.servers import Cluster, SentinelTrio
from testkit.waiting import eventually
from tests.backends.redis.seeds import let_pass
from weakincentives.contrib.mailbox.contract.driver import Driver, Face, Proxy, background
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis.client import script_client
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import MailboxError, ReceiptHandleExpiredError

CARRY_ON = 10 * (1.0 + 5.0)
"""Seconds within which work goes on: the node timeout and five, ten times on a busy machine."""
LEASE = 5.0


class Load:
    """Threads that send and consume, and what came of it."""

    def __init__(self, name: str, client: Any, min_replicas: int) -> None:
        self.box: RedisMailbox[Any, Any] = RedisMailbox(name, client, min_replicas=min_replicas)
        self.sent: set[str] = set()
        self.done: Counter[str] = Counter()
        self.last_send = self.last_receive = time.monotonic()
        self.longest_silence = 0.0
        self.producing = self.consuming = True

    def produce(self) -> None:
        while self.producing:
            id = new_id()
            while True:
                try:
                    self.box.send(id, message_id=id)
                except MailboxError:
                    if not self.producing:
                        return
                    continue  # the fate is unknown: the same id is safe to send again
                break
            self.sent.add(id)
            now = time.monotonic()
            self.longest_silence = max(self.longest_silence, now - self.last_send)
            self.last_send = now

    def consume(self) -> None:
        while self.consuming:
            try:
                for message in self.box.receive(
                    max_messages=5, visibility_timeout=LEASE, wait_time_seconds=1
                ):
                    message.acknowledge()
                    self.done[message.body] += 1
                    self.last_receive = time.monotonic()
            except MailboxError:
                continue

    @contextmanager
    def running(self) -> Iterator[None]:
        threads = [threading.Thread(target=t) for t in (self.produce, self.produce, self.consume)]
        for thread in threads:
            thread.start()
        try:
            eventually(lambda: len(self.done) > 20, 60, "work to be under way")
            yield
            self.goes_on()
        finally:
            self.producing = False
            for thread in threads[:2]:
                thread.join(120)
            try:
                eventually(lambda: self.sent <= set(self.done), LEASE + 60, "all to be done")
            finally:
                self.consuming = False
                threads[2].join(60)
                self.box.close()

    def goes_on(self) -> None:
        """Wait until both sides have done something since now."""
        now = time.monotonic()
        eventually(
            lambda: self.last_send > now and self.last_receive > now, CARRY_ON, "work to go on"
        )


def stale_handle(box: RedisMailbox[Any, Any], server: Any) -> Any:
    """Return a message whose lease has ended."""
    box.send("stale")
    (message,) = box.receive(visibility_timeout=0.1)
    let_pass(server, 0.2)
    return message


def is_refused(message: Any) -> bool:
    try:
        message.acknowledge()
    except ReceiptHandleExpiredError:
        return True
    return False


@pytest.fixture
def trio(shared_trio: SentinelTrio) -> Iterator[SentinelTrio]:
    yield shared_trio
    for server in shared_trio.nodes:
        shared_trio.revive(server)


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    yield shared_cluster
    for server in shared_cluster.nodes:
        shared_cluster.revive(server)


def test_sentinel_kill(trio: SentinelTrio) -> None:
    """One of two replicas has each message, and Sentinels promote the one that has most."""
    with trio.client() as client:
        load = Load(f"load-{new_id()}", client, min_replicas=1)
        other: RedisMailbox[Any, Any] = RedisMailbox(f"other-{new_id()}", client)
        stale = stale_handle(other, trio.primary())
        with load.running():
            trio.wait_for_failover(trio.kill_primary())
        assert is_refused(stale)
        assert load.longest_silence < CARRY_ON
        other.close()


@pytest.mark.full
@pytest.mark.parametrize("how", ["kill", "planned"])
def test_sentinel_with_all_replicas(trio: SentinelTrio, how: str) -> None:
    with trio.client() as client:
        load = Load(f"load-{new_id()}", client, min_replicas=2)
        with load.running():
            if how == "kill":
                old = trio.kill_primary()
                trio.wait_for_failover(old)
                trio.revive(old)  # until then, no send can have two replicas
            else:
                trio.failover()


@pytest.mark.full
@pytest.mark.parametrize("how", ["kill", "planned"])
def test_cluster_with_all_replicas(cluster: Cluster, how: str) -> None:
    with cluster.client() as client:
        name = f"load-{new_id()}"
        old = cluster.node_for_key(f"{{queue:{name}}}")
        load = Load(name, client, min_replicas=1)
        twin: RedisMailbox[Any, Any] = RedisMailbox(name, client)
        with load.running():
            if how == "kill":
                cluster.kill(old)
                cluster.wait_for_failover(old)
                began = time.monotonic()
                twin.send(new_id())  # without replicas to wait for, work goes on at once
                assert time.monotonic() - began < CARRY_ON
                cluster.revive(old)
            else:
                cluster.failover(old)
        twin.close()


def test_a_slot_migrates_under_load(cluster: Cluster) -> None:
    with cluster.client() as client:
        name = f"load-{new_id()}"
        key = f"{{queue:{name}}}"
        source = cluster.node_for_key(key)
        target = next(
            cluster.primary_of(shard[0]) for shard in cluster.shards if source not in shard
        )
        slot = source.command("CLUSTER", "KEYSLOT", key)
        load = Load(name, client, min_replicas=1)
        with load.running():
            for to in (target, source):
                cluster.migrate_slot(slot, to)
                load.goes_on()
        assert max(load.done.values()) == 1
        assert load.longest_silence < CARRY_ON


@pytest.mark.full
@pytest.mark.parametrize("kind", ["sentinel", "cluster"])
def test_a_blocked_async_consumer_hears_again_after_a_failover(
    kind: str, request: pytest.FixtureRequest, binary: Path
) -> None:
    place = request.getfixturevalue("trio" if kind == "sentinel" else "cluster")
    name = f"async-{new_id()}"

    def fail_over() -> None:
        if kind == "sentinel":
            place.wait_for_failover(place.kill_primary())
        else:
            old = place.node_for_key(f"{{queue:{name}}}")
            place.kill(old)
            place.wait_for_failover(old)

    async def scenario() -> None:
        client = getattr(clients, kind)(place, awaited=True)
        box: RedisMailbox[Any, Any] = RedisMailbox(name, client)
        waiting = asyncio.ensure_future(box.receive_async(wait_time_seconds=60))
        await asyncio.sleep(0.2)
        await asyncio.to_thread(fail_over)
        await box.send_async("after")
        (message,) = await asyncio.wait_for(waiting, CARRY_ON)
        assert message.body == "after"
        await message.acknowledge_async()
        box.close()
        await clients.close(client)

    asyncio.run(scenario())


@pytest.mark.parametrize("face", ["sync", "async"])
def test_no_sentinel_is_forgotten(binary: Path, face: Face) -> None:
    """Who looks for the primary at once, while one sentinel is silent, must not lose that one."""
    driver = Driver(face)
    with SentinelTrio(binary, replicas=1) as trio:
        client = clients.sentinel(trio, awaited=face == "async")
        box: Any = Proxy(RedisMailbox("box", client), driver)
        silent, *others = trio.sentinel_servers
        silent.pause()
        sending = [background(box.send, number) for number in range(4)]
        # One that is silent costs a second, whoever has to find out.
        assert len({each.result(120) for each in sending}) == 4
        silent.resume()
        for other in others:
            other.pause()
        driver.call(_disconnected, client)
        box.send("found by the one that was silent")
        assert box.approximate_count() == 5
        for other in others:
            other.resume()
        if face == "async":
            driver.run(clients.close(client))
        else:
            client.close()
    driver.close()


async def _disconnected(client: Any) -> None:
    script_client(client).pool.close()
