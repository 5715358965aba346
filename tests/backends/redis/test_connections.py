"""Connections: while they block, when they close, over a fork, and of all kinds of clients."""

import asyncio
import gc
import itertools
import os
import subprocess
import sys
import threading
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from redis.exceptions import ConnectionError as LostConnection

from testkit import redis_clients as clients
from testkit.forks import in_fork
from testkit.servers import Standalone
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.contrib.mailbox.contract.driver import Driver, Face, Proxy, background
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis import resp as packing
from weakincentives.contrib.mailbox.redis.connection import Interrupt
from weakincentives.contrib.mailbox.redis.pool import Node, Pool
from weakincentives.contrib.mailbox.redis.routing import Router
from weakincentives.contrib.mailbox.redis.topology import Topology
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.seam.driver import run

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
            threading.Thread(target=box.receive, kwargs={"wait_time_seconds": 300})
            for _ in range(10)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: blocked(server) == 10, 60, "ten blocked consumers")
        box.stats()
        box.close()
        for thread in threads:
            thread.join(120)
            assert not thread.is_alive()


def test_blocked_async_consumers_occupy_no_thread(server: Standalone) -> None:
    async def scenario(box: Box) -> None:
        waiting = [
            asyncio.ensure_future(box.receive_async(wait_time_seconds=300)) for _ in range(100)
        ]
        while blocked(server) < 100:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(box.send_async("work"), 60)
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=60)
        assert len(done) == 1
        box.close()
        await asyncio.wait_for(asyncio.gather(*waiting), 60)

    with server.client() as client, Box("box", client) as box:
        asyncio.run(scenario(box))


def blocked(server: Standalone) -> int:
    return int(server.info("clients")["blocked_clients"])


def receive_into(got: list[Any], box: Box) -> None:
    got.extend(box.receive(wait_time_seconds=300))


def test_close_gives_back_nothing_and_loses_nothing(server: Standalone, client: Any) -> None:
    """Whatever a blocked consumer had leased when it was closed is handed out, not forgotten."""
    for _ in range(20):
        box = Box("box", client)
        got: list[Any] = []
        waiting = threading.Thread(target=receive_into, args=(got, box))
        waiting.start()
        eventually(lambda: blocked(server) == 1, 60, "a blocked consumer")
        sending = threading.Thread(target=Box("box", client).send, args=("work",))
        sending.start()
        box.close()
        waiting.join(60)
        sending.join(60)
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
            box.receive(wait_time_seconds=300)
            ended.set()

        threading.Thread(target=wait, daemon=True).start()
        eventually(lambda: blocked(server) == 1, 60, "a blocked consumer")
        server.kill()
        box.close()
        assert ended.wait(120)


@pytest.mark.parametrize("face", ["sync", "async"])
def test_closing_a_backend_ends_its_waits_with_nothing(server: Standalone, face: Face) -> None:
    """As on every backend: an empty list, never an error."""
    driver = Driver(face)
    for _ in range(10):
        backend = connect(server.url)
        inner = backend.mailbox("orders")
        box: Any = Proxy(inner, driver)
        waiting = [background(box.receive, wait_time_seconds=300) for _ in range(4)]
        eventually(lambda: blocked(server) == 4, 60, "four blocked consumers")
        backend.close()
        assert [each.result(120) for each in waiting] == [[]] * 4
    driver.close()


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


def test_a_forked_child_leaves_its_parents_event_loop_alone(server: Standalone) -> None:
    async def send(box: Box, body: str) -> None:
        await box.send_async(body)

    async def scenario() -> float:
        client = clients.standalone(server, awaited=True)
        box = Box("box", client)
        await send(box, "before")

        def child() -> None:
            asyncio.events._set_running_loop(None)
            asyncio.run(send(box, "from the child"))
            gc.collect()

        assert in_fork(child) == 0
        began = time.monotonic()
        await send(box, "after")
        took = time.monotonic() - began
        assert await box.approximate_count_async() == 3
        await clients.close(client)
        return took

    # A connection whose socket was taken out of the loop's selector is given up after 5 seconds.
    assert asyncio.run(scenario()) < 4


# Signals


def test_a_signal_handler_may_close_a_mailbox_whose_wait_it_interrupts() -> None:
    """At any line: the handler runs in the thread that has the lock."""
    interrupt = Interrupt()
    lines = []

    def strike(frame: Any, event: str, _: object) -> Any:
        if event == "line" and frame.f_code in codes:
            lines.append(frame.f_lineno)
            before = sys.gettrace()
            sys.settrace(None)
            interrupt.set()
            sys.settrace(before)
        return strike

    codes = {Interrupt.enter.__code__, Interrupt.leave.__code__}
    woken: list[int] = []
    wake = partial(woken.append, 1)

    def wait() -> None:
        sys.settrace(strike)
        interrupt.enter(wake)
        interrupt.leave(wake)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert woken
    assert len(lines) > 3


# Commands


# In a process of its own, which hiredis crashed: it gives no thought to what repr() raises.
INTERRUPTED_PACKING = """
import random, signal
from weakincentives.contrib.mailbox.redis.resp import Head, pack
from weakincentives.contrib.mailbox.redis.scripts import Script

def leave(number, frame):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, leave)
head, chance, struck = Head(Script(b"return 1", b"a" * 40), b"key"), random.Random(1), 0
for _ in range(3000):
    try:
        signal.setitimer(signal.ITIMER_REAL, chance.uniform(1e-6, 3e-5))
        for _ in range(40):
            pack(b"CLIENT", b"UNBLOCK", 12), head.packed((), (1, 2, 3)), head.as_text((4, 5))
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        struck += 1
assert struck, "no signal came"
"""


def test_a_signal_handler_may_raise_while_a_number_is_packed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_PACKING],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


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


# Servers that become known while others look


class MeetsAnother:
    """A transport during whose work another thread meets a server that was not known."""

    pool: Pool

    def drop(self, pooled: object) -> None:
        self.pool.node(("127.0.0.1", len(self.pool.nodes)))


def test_a_server_that_becomes_known_disturbs_nobody() -> None:
    transport: Any = MeetsAnother()
    pool = transport.pool = Pool(transport)
    for port in range(1000, 1005):
        node = pool.node(("127.0.0.1", port))
        pool.park(node, Mock(generation=node.generation))
    pool.close()
    assert len(pool.known()) > 5


class ClearedMeanwhile(deque[Any]):
    """Idle connections that another thread lets go of just before one more is added."""

    pool: Pool
    node: Node

    def append(self, pooled: Any) -> None:
        self.pool.clear(self.node)
        super().append(pooled)


def test_a_connection_parked_while_the_idle_ones_are_dropped_is_dropped_too() -> None:
    dropped: list[Any] = []
    pool = Pool(Mock(drop=dropped.append))
    node = pool.node(None)
    idle = node.idle = ClearedMeanwhile()
    idle.pool, idle.node = pool, node
    late = Mock(generation=node.generation)
    pool.park(node, late)
    assert dropped == [late]
    assert not node.idle


def test_many_threads_ask_for_the_slots_at_once() -> None:
    asked: Any = Mock(ask=failing)
    pool = Pool(Mock())
    topology = Topology(Mock(), False, seeds=lambda: [("127.0.0.1", 1)])
    router, done = Router(topology, pool, asked), threading.Event()

    def meet_servers() -> None:
        for port in itertools.count():
            if done.is_set():
                return
            pool.node(("127.0.0.1", port % 500))
            if port % 500 == 0:
                pool.nodes.clear()

    thread = threading.Thread(target=meet_servers)
    thread.start()
    try:
        for _ in range(20):
            with pytest.raises(LostConnection):
                run(router.primaries)
    finally:
        done.set()
        thread.join()


async def failing(node: object, command: object) -> None:
    raise LostConnection
