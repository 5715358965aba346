"""Redis: the budget of the design, beside raw redis-py in the same run.

Client and server share one core, where the figures repeat; what both cores give follows.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis
from redis.connection import PythonRespSerializer

from benchmarks.harness import AT_ONCE, Row, best_of, compare, report, served, served_async, timed
from testkit.servers import Standalone, servers_available
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.redis import RedisMailbox

COUNT = 2000
BATCH = 100
BODY = {"key": "v" * 188}
RAW = b'{"key":"' + b"v" * 188 + b'"}'


def rows() -> Iterator[Row]:
    """Measure the Redis column."""
    servers = servers_available()
    if not servers:
        print("  no server found: nothing was measured")
        return
    binary = next(iter(servers.values()))
    with pinned(), Standalone(binary) as server:
        yield from throughput(server, "one core")
    with Standalone(binary) as server:
        yield from latency(server)
        yield from costs(server)
        yield from throughput(server, "all cores")
        yield from crowded(server)


@contextmanager
def pinned() -> Iterator[None]:
    """Keep this process and what it starts on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def raw_client(server: Standalone) -> Any:
    """Return redis-py as it is without hiredis."""
    from redis._parsers import _RESP2Parser

    encode = redis.connection.Encoder("utf-8", "strict", False).encode
    return redis.Redis(
        connection_pool=redis.ConnectionPool(
            host="127.0.0.1",
            port=server.port,
            protocol=2,
            parser_class=_RESP2Parser,
            command_packer=PythonRespSerializer(6000, encode),
        )
    )


def throughput(server: Standalone, where: str) -> Iterator[Row]:
    raw, box = raw_client(server), RedisMailbox[Any, Any]("bench", server.client())

    def rate(step: Callable[[], object], times: int, worth: int = 1) -> Callable[[], float]:
        def run() -> float:
            return times * worth / timed(lambda: [step() for _ in range(times)])

        return run

    def pipeline(command: str, *arguments: Any) -> Callable[[], object]:
        def run() -> None:
            with raw.pipeline(transaction=False) as pipe:
                for _ in range(BATCH):
                    pipe.execute_command(command, *arguments)
                pipe.execute()

        return run

    def consume(size: int) -> Callable[[], object]:
        held: list[Any] = []

        def run() -> None:
            held[:] = box.exchange(held, max_messages=size)

        return run

    send, push = rate(lambda: box.send(BODY), COUNT), rate(lambda: raw.lpush("raw", RAW), COUNT)
    yield compare(f"enqueue, one at a time ({where})", send, push, 1.0)
    times = COUNT // BATCH
    yield compare(
        f"enqueue, batch of {BATCH} ({where})",
        rate(lambda: box.send_batch([BODY] * BATCH), times, BATCH),
        rate(pipeline("LPUSH", "raw", RAW), times, BATCH),
        1.4,
    )
    for _ in range(400):
        box.send_batch([BODY] * 200)
        raw.lpush("raw", *[RAW] * 200)
    pop = rate(lambda: raw.rpop("raw"), COUNT)
    yield compare(f"consume + ack, one at a time ({where})", rate(consume(1), COUNT), pop, 0.8)
    yield compare(f"consume + ack in a Worker ({where})", served(box, 1, COUNT), pop, 0.8)
    best = rate(consume(BATCH), times, BATCH)
    yield compare(f"consume + ack, {BATCH} at a time ({where})", best, pop, 5)
    yield compare(
        f"the same in a Worker, batch={BATCH} ({where})", served(box, BATCH, COUNT), pop, 5
    )
    one, many = served_async(box, 1, COUNT), served_async(box, AT_ONCE, COUNT)
    yield compare(f"consume + ack in an async Worker ({where})", one, pop, 0.8)
    yield compare(f"the same, {AT_ONCE} jobs at once ({where})", many, pop, 5)
    box.purge()
    box.close()
    raw.delete("raw")
    raw.close()


def serve(port: int, replies: bool, results: Any) -> None:
    """In another process: receive, note the delay, reply."""
    box = RedisMailbox[Any, Any]("bench", redis.Redis(port=port))
    while True:
        for message in box.receive(wait_time_seconds=20):
            now = time.monotonic()
            if message.body is None:
                message.acknowledge()
                return
            if replies:
                message.reply(message.body)
            else:
                message.acknowledge()
                results.send(now - message.body)


def latency(server: Standalone) -> Iterator[Row]:
    for replies, name in ((False, "send → handler"), (True, "request → reply")):
        box = RedisMailbox[Any, Any]("bench", server.client())
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        worker = multiprocessing.get_context("spawn").Process(
            target=serve, args=(server.port, replies, theirs)
        )
        worker.start()
        taken = []
        for _ in range(300):
            eventually(
                lambda: server.info("clients")["blocked_clients"] == "1", 20, "worker", interval=0
            )
            began = time.monotonic()
            if replies:
                box.send_expecting_reply(began).wait(timeout=10)
                taken.append(time.monotonic() - began)
            else:
                box.send(began)
                taken.append(ours.recv())
        box.send(None)
        worker.join()
        box.close()
        target = 0.5 if replies else 0.6
        median = best_of(taken, 0.5) * 1000
        yield Row(f"{name} in another process, median", median, target, "ms", at_least=False)
        if not replies:
            worst = best_of(taken, 0.99) * 1000
            yield Row(f"{name} in another process, p99", worst, 3, "ms", at_least=False)


def costs(server: Standalone) -> Iterator[Row]:
    box = RedisMailbox[Any, Any]("bench", server.client())
    box.send(0)
    box.exchange(box.receive())
    server.command("CONFIG", "RESETSTAT")
    for _ in range(COUNT + 1):
        box.send(BODY)
    held: list[Any] = []
    for _ in range(COUNT):
        held = box.exchange(held)
    calls = {
        key.removeprefix("cmdstat_"): int(value.split(",")[0].removeprefix("calls="))
        for key, value in server.info("commandstats").items()
        if not key.startswith(("cmdstat_config", "cmdstat_info"))
    }
    trips = calls["evalsha"] / COUNT
    yield Row("round trips for each message, backlog", trips, 2.1, "", at_least=False)
    inner = sum(calls.values()) / COUNT
    yield Row("commands for each message, scripts included", inner, 18, "", at_least=False)
    box.purge()
    before = int(server.info("memory")["used_memory"])
    for _ in range(100):
        box.send_batch([BODY] * 1000)
    size = (int(server.info("memory")["used_memory"]) - before) / 100_000
    yield Row("bytes for each queued message", size, 380, "B", at_least=False)
    box.purge()
    box.close()


def crowded(server: Standalone) -> Iterator[Row]:
    box = RedisMailbox[Any, Any]("bench", server.client())

    def life() -> float:
        held: list[Any] = []

        def lives() -> None:
            for _ in range(1000):
                box.send(BODY)
                held[:] = box.exchange(held)

        return timed(lives)

    life()
    empty = best_of([life() for _ in range(5)], 0.5)
    for _ in range(1000):
        box.send_batch([BODY] * 1000)
    full = best_of([life() for _ in range(5)], 0.5)
    yield Row("a million queued, send + receive", full / empty, 1.5, at_least=False)
    box.purge()
    box.close()


if __name__ == "__main__":
    report("redis", rows())
    sys.exit(0)
