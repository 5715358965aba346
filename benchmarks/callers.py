"""Callers of a worker in another process, on Redis and SQLite, beside a bare exchange."""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from benchmarks.harness import Row, best_of
from testkit.servers import Standalone, servers_available
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime import AsyncJob, Job, Mailbox, Worker

ROUNDS = 300
PARTS = 200
MANY_PARTS = 10_000
PAUSE = 0.002
"""The handler's pause between two parts, so that each finds its reader waiting."""

SPAWN = multiprocessing.get_context("spawn")


def rows() -> Iterator[Row]:
    """Measure what a caller waits for."""
    servers = servers_available()
    if not servers:
        print("  no server found: only SQLite was measured")
    for binary in list(servers.values())[:1]:
        with Standalone(binary) as server:
            yield from on_redis(server)
    with TemporaryDirectory() as folder:
        yield from on_sqlite(f"sqlite:///{Path(folder, 'bench.db')}?durability=normal")


def on_redis(server: Standalone) -> Iterator[Row]:
    url = f"redis://localhost:{server.port}"
    raw = redis.Redis(port=server.port)

    def both_wait() -> None:
        eventually(
            lambda: server.info("clients")["blocked_clients"] == "2", 20, "workers", interval=0
        )

    def bare() -> None:
        raw.lpush("ping", b"1")
        raw.brpop(["pong"])

    with working(serve, url), working(serve_bare, server.port), connect(url) as backend:
        box = backend.mailbox("bench")
        ask(box, "warm up")
        ours, theirs = [], []
        for _ in range(ROUNDS):
            both_wait()
            ours.append(seconds(lambda: ask(box, "question")))
            both_wait()
            theirs.append(seconds(bare))
        median, base = best_of(ours, 0.5), best_of(theirs, 0.5)
        yield beside("request → reply on Redis, median", median, base, 1.5)
        late = best_of(delays(box), 0.5)
        raw.lpush("ping", b"parts")
        base = best_of(bare_delays(raw), 0.5)
        yield beside("a part to its reader on Redis, median", late, base, 2)
        raw.lpush("ping", b"end")
        box.send("end")
    raw.close()
    yield many_parts(url, "Redis")


def on_sqlite(url: str) -> Iterator[Row]:
    with working(serve, url), connect(url) as backend:
        box = backend.mailbox("bench")
        ask(box, "warm up")
        taken = [seconds(lambda: ask(box, "question")) for _ in range(ROUNDS)]
        median = best_of(taken, 0.5) * 1000
        yield Row("request → reply on SQLite, NORMAL, median", median, 1, "ms", at_least=False)
        late = best_of(delays(box), 0.5) * 1000
        yield Row("a part to its reader on SQLite, median", late, 2, "ms", at_least=False)
        box.send("end")
    yield many_parts(url, "SQLite")


def beside(name: str, figure: float, base: float, target: float) -> Row:
    detail = f"{figure * 1000:.3f} ms beside {base * 1000:.3f} ms"
    return Row(name, figure / base, target, at_least=False, detail=detail)


def ask(box: Mailbox[Any, Any], body: str) -> Any:
    return box.send_expecting_reply(body, reply_timeout=60).wait(timeout=60)


def delays(box: Mailbox[Any, Any]) -> list[float]:
    """Return how long each part was on its way."""
    reply = box.send_expecting_reply("parts", reply_timeout=60)
    return [time.monotonic() - part.value for part in reply.parts(timeout=60)]


def bare_delays(raw: Any) -> list[float]:
    """Return how long each was on its way that another process has pushed."""
    taken = []
    for _ in range(PARTS):
        pushed = float(raw.brpop(["pong"])[1])
        taken.append(time.monotonic() - pushed)
    return taken


def many_parts(url: str, where: str) -> Row:
    """Return how many parts a second come from one async handler to their reader."""
    with working(serve_many, url), connect(url) as backend:
        reply = backend.mailbox("many").send_expecting_reply("go", reply_timeout=60)
        parts = iter(reply.parts(timeout=60))
        next(parts)
        began, count = time.monotonic(), sum(1 for _ in parts)
        rate = count / (time.monotonic() - began)
    return Row(f"parts through one worker on {where}", rate, 10_000, "/s")


def seconds(work: Callable[[], object]) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


@contextmanager
def working(target: Callable[..., None], *arguments: Any) -> Iterator[None]:
    """Run a process until it ends by itself."""
    process = SPAWN.Process(target=target, args=arguments)
    process.start()
    yield
    process.join(60)


def serve(url: str) -> None:
    """In another process: a worker with one thread."""
    with connect(url) as backend:
        box = backend.mailbox("bench")

        def handle(body: str, job: Job) -> str:
            if body == "end":
                worker.shutdown(timeout=0)
            for _ in range(PARTS if body == "parts" else 0):
                time.sleep(PAUSE)
                job.emit(time.monotonic())
            return body

        worker = Worker(box, handle)
        worker.run()


def serve_many(url: str) -> None:
    """In another process: a worker with an async handler that emits as fast as it can."""
    with connect(url) as backend:

        async def handle(body: str, job: AsyncJob) -> None:
            for number in range(MANY_PARTS):
                await job.emit(number)

        Worker(backend.mailbox("many"), handle).run(max_iterations=1)


def serve_bare(port: int) -> None:
    """In another process: the same by two lists and no more."""
    client = redis.Redis(port=port)
    while (asked := client.brpop(["ping"])[1]) != b"end":
        if asked == b"parts":
            for _ in range(PARTS):
                time.sleep(PAUSE)
                client.lpush("pong", str(time.monotonic()))
        else:
            client.lpush("pong", asked)
