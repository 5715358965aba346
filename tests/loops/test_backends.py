"""What loops owe to each backend: the same code everywhere, and one step where it can be one."""

import threading
from dataclasses import dataclass

import pytest

from tests.loops.helpers import in_background
from tests.support.waiting import eventually
from weakincentives import connect
from weakincentives.adapters import CallableAdapter
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    MailboxConnectionError,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    Worker,
    WorkerConfig,
    current_lease,
    replay_dead_letters,
)


@dataclass(frozen=True)
class Order:
    item: str


@dataclass(frozen=True)
class Receipt:
    text: str


class Shop(MainLoop[Order, Receipt]):
    pass


def sell(prompt):
    if prompt.params.item == "unicorn":
        raise LookupError("out of stock")
    return Receipt(prompt.params.item.upper())


@pytest.fixture(params=["memory", "sqlite", "redis"])
def backend(request, tmp_path):
    url = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/queues.db",
        "redis": lambda: request.getfixturevalue("redis_url"),
    }[request.param]()
    with connect(url) as backend:
        for name in ("requests", "results", "dead"):
            backend.mailbox(name).purge()
        yield backend


def test_requests_results_dead_letters_and_replay(backend):
    requests, letters = backend.mailbox("requests"), backend.mailbox("dead")
    loop = Shop(
        adapter=CallableAdapter(sell),
        requests=requests,
        dlq=DLQPolicy(letters, max_delivery_count=2),
        config=MainLoopConfig(concurrency=3, backoff=Backoff(base=0, cap=0)),
    )
    with in_background(loop):
        items = [f"item-{n}" for n in range(20)]
        replies = [
            requests.send_expecting_reply(MainLoopRequest(request=Order(item))) for item in items
        ]
        assert [reply.wait(timeout=30).output for reply in replies] == [
            Receipt(item.upper()) for item in items
        ]
        lost = requests.send_expecting_reply(MainLoopRequest(request=Order("unicorn")))
        assert lost.wait(timeout=30).error.startswith("Dead-lettered after 2 attempts: LookupError")
    eventually(lambda: requests.stats().total == 0)
    (letter,) = [peeked.body for peeked in letters.peek()]
    assert letter.body.request == Order("unicorn")
    assert replay_dead_letters(letters, requests) == 1
    (again,) = requests.receive()
    assert again.body == letter.body
    assert again.body.request == Order("unicorn")


def test_leases_are_kept(backend):
    box = backend.mailbox("requests")
    box.send_batch(["a", "b", "c"])
    deliveries = []
    go = threading.Event()

    def handler(body):
        if body == "a":
            assert go.wait(30)
        deliveries.append(current_lease().message.delivery_count)

    worker = Worker(box, handler, config=WorkerConfig(batch=3))
    with in_background(worker, visibility_timeout=1):
        eventually(lambda: worker.lease_extender.counters.extended >= 12, within=30)
        assert box.receive() == []
        go.set()
        eventually(lambda: box.stats().total == 0)
    assert deliveries == [1, 1, 1]


def test_shutdown_gives_back_what_waits(backend):
    box = backend.mailbox("requests")
    box.send_batch(list(range(5)))
    started, go = threading.Event(), threading.Event()

    def handler(body):
        started.set()
        assert go.wait(30)

    worker = Worker(box, handler, config=WorkerConfig(batch=5))
    with in_background(worker):
        assert started.wait(30)
        worker.shutdown(timeout=0)
        go.set()
    stats = box.stats()
    assert (stats.pending, stats.in_flight) == (4, 0)


def test_on_sqlite_a_reply_and_its_acknowledgement_are_one_transaction(tmp_path, monkeypatch):
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box, results = backend.mailbox("requests"), backend.mailbox("results")
        box.send("a", reply_to=results)
        lease = box.store.lease
        undone = []

        def fail_once(count, seconds, *, acknowledge=(), ids=None):
            if acknowledge and not undone:
                # The reply is there, inside the transaction, and nobody else can see it.
                undone.append(results.stats().pending)
                raise MailboxConnectionError("cut off")
            return lease(count, seconds, acknowledge=acknowledge, ids=ids)

        monkeypatch.setattr(box.store, "lease", fail_once)
        seen = []
        worker = Worker(box, lambda body: seen.append(body) or body.upper())
        original = worker._stop.wait
        monkeypatch.setattr(
            worker._stop,
            "wait",
            lambda pause: (seen.append(results.stats().pending), original(pause))[1],
        )
        worker.run(max_iterations=3, wait_time_seconds=0)
        # run once, undone once (nothing was to be seen), then answered once
        assert seen == ["a", 0]
        assert undone
        assert [message.body for message in results.receive(max_messages=5)] == ["A"]
        assert box.stats().total == 0


def test_a_loop_outlives_a_restart_of_redis():
    from tests.servers import Standalone, servers_available
    from tests.services import missing

    available = servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    with Standalone(next(iter(available.values()))) as server, connect(server.url) as backend:
        box = backend.mailbox("requests")
        worker = Worker(box, str.upper)
        with in_background(worker, wait_time_seconds=20):
            assert box.send_expecting_reply("a").wait(timeout=20) == "A"
            server.restart()
            eventually(lambda: worker.heartbeat.trouble(60) is None, within=30)
            assert box.send_expecting_reply("b").wait(timeout=20) == "B"
