"""SQLite: mailboxes on a file beside a plain loop over the standard library's ``sqlite3``.

The reference is one table and the loop that one would write by hand. Rows marked "bytes" compare
the store with it, 200 bytes in and out; the others compare a mailbox, from object to object, with
the same loop that calls ``json.dumps`` and ``json.loads``.
"""

import json
import multiprocessing
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import (
    AT_ONCE,
    Row,
    best_of,
    compare,
    report,
    served,
    served_async,
    timed,
)
from weakincentives.contrib.mailbox.sqlite import SQLiteMailbox
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.seam.store import Outgoing

BODY = {
    "order": "A-1729",
    "lines": [{"sku": "x" * 20, "count": n} for n in range(3)],
    "note": "n" * 45,
}
PAYLOAD = json.dumps(BODY).encode()
COUNT = {"normal": 1000, "full": 200}
BATCH = 100
MILLION = 1_000_000
spawn = multiprocessing.get_context("spawn")


def rows() -> Iterator[Row]:
    """Measure the SQLite column of the budgets."""
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        for durability, targets in (("normal", (0.65, 0.5)), ("full", (0.9, 0.85))):
            yield from _one_at_a_time(place, durability, *targets)
        yield from _batches(place)
        yield from _latencies(place)
        yield _idle(place)
        yield from _four_consumers(place)
        yield from _a_million(place)


class Plain:
    """The loop that one would write by hand."""

    def __init__(self, path: Path, durability: str, objects: bool = False) -> None:
        self.write: Any = (lambda: json.dumps(BODY).encode()) if objects else (lambda: PAYLOAD)
        self.read: Any = json.loads if objects else (lambda body: body)
        self.connection = sqlite3.connect(path, isolation_level=None)
        self.connection.execute("PRAGMA journal_mode = WAL")
        self.connection.execute(f"PRAGMA synchronous = {durability}")
        self.connection.execute("CREATE TABLE message (id INTEGER PRIMARY KEY, body BLOB)")

    def put(self, count: int) -> None:
        execute = self.connection.execute
        for _ in range(count):
            execute("BEGIN IMMEDIATE")
            execute("INSERT INTO message (body) VALUES (?)", (self.write(),))
            execute("COMMIT")

    def put_batches(self, count: int) -> None:
        execute = self.connection.execute
        for _ in range(count // BATCH):
            execute("BEGIN IMMEDIATE")
            for _ in range(BATCH):
                execute("INSERT INTO message (body) VALUES (?)", (self.write(),))
            execute("COMMIT")

    def take(self, count: int) -> None:
        execute = self.connection.execute
        for _ in range(count):
            execute("BEGIN IMMEDIATE")
            id, body = execute("SELECT id, body FROM message ORDER BY id LIMIT 1").fetchone()
            execute("DELETE FROM message WHERE id = ?", (id,))
            execute("COMMIT")
            self.read(body)

    def take_batches(self, count: int) -> None:
        execute = self.connection.execute
        for _ in range(count // BATCH):
            execute("BEGIN IMMEDIATE")
            for _ in range(BATCH):
                id, body = execute("SELECT id, body FROM message ORDER BY id LIMIT 1").fetchone()
                execute("DELETE FROM message WHERE id = ?", (id,))
                self.read(body)
            execute("COMMIT")
            self.read(body)


def rate(count: int, work: Callable[[], object]) -> Callable[[], float]:
    """Return a measurement of how many a second ``work`` does."""
    return lambda: count / timed(work)


def _one_at_a_time(place: Path, durability: str, put: float, take: float) -> Iterator[Row]:
    plain = Plain(place / f"plain-{durability}.db", durability)
    plain_json = Plain(place / f"json-{durability}.db", durability, objects=True)
    path = place / f"ours-{durability}.db"
    box: SQLiteMailbox[Any] = SQLiteMailbox("objects", path, durability=durability)
    store = SQLiteMailbox[Any]("bytes", path, durability=durability).store
    count = COUNT[durability]

    def send() -> None:
        for _ in range(count):
            box.send(BODY)

    def put_bytes() -> None:
        for _ in range(count):
            store.put_now((Outgoing(new_id(), PAYLOAD),))

    def consume() -> None:
        done: list[Any] = []
        for _ in range(count):
            done = box.exchange(done)
            assert done[0].body
        box.acknowledge_batch(done)

    def consume_bytes() -> None:
        done: list[str] = []
        for _ in range(count):
            done = [store.lease_now(1, 30, acknowledge=done).messages[0].handle]
        store.acknowledge_now(done)

    rounds = 15
    yield compare(
        f"enqueue, {durability}",
        rate(count, send),
        rate(count, lambda: plain_json.put(count)),
        put,
        rounds,
    )
    yield compare(
        f"consume + ack, {durability}",
        rate(count, consume),
        rate(count, lambda: plain_json.take(count)),
        take,
        rounds,
    )
    yield from _in_workers(box, plain_json, durability, count, take)
    yield compare(
        f"enqueue, {durability}, bytes",
        rate(count, put_bytes),
        rate(count, lambda: plain.put(count)),
        put,
        rounds,
    )
    yield compare(
        f"consume + ack, {durability}, bytes",
        rate(count, consume_bytes),
        rate(count, lambda: plain.take(count)),
        take,
        rounds,
    )


def _in_workers(
    box: SQLiteMailbox[Any], plain: Plain, durability: str, count: int, target: float
) -> Iterator[Row]:
    rounds = 15
    for name, ours in (("a", served(box, 1, count)), ("an async", served_async(box, 1, count))):
        for _ in range(rounds + 1):  # there is always a backlog
            box.send_batch([BODY] * count)
            plain.put_batches(count)
        name = f"consume + ack in {name} Worker, {durability}"
        yield compare(name, ours, rate(count, partial(plain.take, count)), target, rounds)
        box.purge()


def _in_workers_with_batches(box: SQLiteMailbox[Any], plain: Plain, count: int) -> Iterator[Row]:
    rounds = 15
    for name, ours in (
        (f"consume + ack in a Worker, batch={BATCH}", served(box, BATCH, count)),
        (f"the same, async, {AT_ONCE} jobs at once", served_async(box, AT_ONCE, count)),
    ):
        for _ in range(rounds + 2):
            for _ in range(count // BATCH):
                box.send_batch([BODY] * BATCH)
            plain.put_batches(count)
        raw = rate(count, partial(plain.take_batches, count))
        yield compare(name, ours, raw, 0.45, rounds)
        box.purge()


def _batches(place: Path) -> Iterator[Row]:
    plain = Plain(place / "plain-batch.db", "normal")
    plain_json = Plain(place / "json-batch.db", "normal", objects=True)
    box: SQLiteMailbox[Any] = SQLiteMailbox("objects", place / "batch.db", durability="normal")
    store = SQLiteMailbox[Any]("bytes", place / "batch.db", durability="normal").store
    count = 2000
    bodies = [BODY] * BATCH

    def send() -> None:
        for _ in range(count // BATCH):
            box.send_batch(bodies)

    messages = [Outgoing(new_id(), PAYLOAD) for _ in range(BATCH)]

    def put_bytes() -> None:
        for _ in range(count // BATCH):
            store.put_now(messages)

    def consume() -> None:
        done: list[Any] = []
        for _ in range(count // BATCH):
            done = box.exchange(done, max_messages=BATCH)
            assert all(message.body for message in done)
        box.acknowledge_batch(done)

    def consume_bytes() -> None:
        done: list[str] = []
        for _ in range(count // BATCH):
            leases = store.lease_now(BATCH, 30, acknowledge=done)
            done = [message.handle for message in leases.messages]
        store.acknowledge_now(done)

    rows = (
        ("enqueue, batch of 100", send, plain_json.put_batches, 1.0),
        ("consume + ack, batch of 100", consume, plain_json.take_batches, 0.45),
        ("enqueue, batch of 100, bytes", put_bytes, plain.put_batches, 1.0),
        ("consume + ack, batch of 100, bytes", consume_bytes, plain.take_batches, 0.45),
    )
    for name, ours, reference, target in rows:
        yield compare(name, rate(count, ours), rate(count, partial(reference, count)), target, 15)
    yield from _in_workers_with_batches(box, plain_json, count)


def _latencies(place: Path) -> Iterator[Row]:
    for durability, targets in (("normal", (1.5, 1.0)), ("full", (1.5, 2.0))):
        path = place / f"latency-{durability}.db"
        jobs: SQLiteMailbox[float, float] = SQLiteMailbox(
            "jobs", path, reply_type=float, durability=durability
        )
        worker = spawn.Process(target=_answer, args=(str(path), durability))
        worker.start()
        jobs.send_expecting_reply(0.0).wait(timeout=60)
        starts, trips = [], []
        for _ in range(200):
            time.sleep(0.002)  # so that the worker waits, as at a trickle
            began = time.time()
            reply = jobs.send_expecting_reply(began)
            starts.append(reply.wait(timeout=10) - began)
            trips.append(time.time() - began)
        jobs.send(-1.0)
        worker.join()
        for name, values, target in (
            ("send → handler in another process", starts, targets[0]),
            ("request → reply across processes", trips, targets[1]),
        ):
            detail = f"p99 {best_of(values, 0.99) * 1000:.2f} ms"
            median = statistics.median(values) * 1000
            yield Row(f"{name}, {durability}", median, target, "ms", False, detail)


def _answer(path: str, durability: str) -> None:
    """Reply with the time at which the handler starts."""
    jobs: SQLiteMailbox[float, float] = SQLiteMailbox("jobs", path, durability=durability)
    while True:
        for message in jobs.receive(wait_time_seconds=20):
            if message.expects_reply():
                message.reply(time.time())
            else:
                message.acknowledge()
                return


def _idle(place: Path) -> Row:
    seconds = 5.0
    queue: Any = spawn.Queue()
    worker = spawn.Process(target=_wait_idly, args=(str(place / "idle.db"), seconds, queue))
    worker.start()
    used = queue.get()
    worker.join()
    return Row("idle consumer, of a core", used / seconds * 100, 0.5, "%", False)


def _wait_idly(path: str, seconds: float, queue: Any) -> None:
    box: SQLiteMailbox[Any] = SQLiteMailbox("idle", path)
    box.send(1)
    box.purge()
    box.receive(wait_time_seconds=0.1)
    before = time.process_time()
    box.receive(wait_time_seconds=seconds)
    queue.put(time.process_time() - before)


def _four_consumers(place: Path) -> Iterator[Row]:
    one = sum(_consumers(place / "one.db", 1))
    four = _consumers(place / "four.db", 4)
    yield Row("four consumer processes, total beside one", sum(four) / one, 0.8)
    slowest = min(four) / statistics.mean(four)
    yield Row("four consumer processes, slowest beside the mean", slowest, 0.6)


def _consumers(path: Path, number: int, seconds: float = 3.0) -> list[int]:
    box: SQLiteMailbox[Any] = SQLiteMailbox("work", path, durability="normal")
    for _ in range(200):
        box.send_batch([BODY] * 1000)
    queue: Any = spawn.Queue()
    barrier = spawn.Barrier(number)
    workers = [
        spawn.Process(target=_consume, args=(str(path), barrier, seconds, queue))
        for _ in range(number)
    ]
    for worker in workers:
        worker.start()
    done = [queue.get() for _ in workers]
    for worker in workers:
        worker.join()
    return done


def _consume(path: str, barrier: Any, seconds: float, queue: Any) -> None:
    box: SQLiteMailbox[Any] = SQLiteMailbox("work", path, durability="normal")
    barrier.wait()
    until = time.monotonic() + seconds
    done: list[Any] = []
    count = 0
    while time.monotonic() < until:
        done = box.exchange(done)
        count += len(done)
    queue.put(count)


def _a_million(place: Path) -> Iterator[Row]:
    small: SQLiteMailbox[Any] = SQLiteMailbox("small", place / "small.db", durability="normal")
    large: SQLiteMailbox[Any] = SQLiteMailbox("large", place / "large.db", durability="normal")
    messages = [Outgoing(str(number), PAYLOAD) for number in range(1000)]
    for _ in range(MILLION // 1000):
        large.store.put_now(messages)

    def lives(box: SQLiteMailbox[Any]) -> Any:
        def live() -> float:
            return timed(
                lambda: [(box.send(BODY), box.receive()[0].acknowledge()) for _ in range(500)]
            )

        return live

    ratio = compare("", lives(large), lives(small), 1.5, 7).figure
    yield Row("a million queued: a life beside an empty queue", ratio, 1.5, at_least=False)
    took = statistics.median(timed(large.stats) for _ in range(9)) * 1000
    yield Row("a million queued: stats()", took, 5.0, "ms", False)
    size = (place / "large.db").stat().st_size / MILLION
    yield Row("bytes on disk per queued message", size, 380, "B", False)


if __name__ == "__main__":
    report("sqlite", rows())
