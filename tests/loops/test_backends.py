"""What loops owe to each backend: the same code everywhere, and one step where it can be one."""

import threading
from dataclasses import dataclass

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives import connect
from weakincentives.adapters import CallableAdapter
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    MailboxFullError,
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
        error = lost.wait(timeout=120).error
        assert error.startswith("Dead-lettered after 2 attempts: LookupError")
    eventually(lambda: requests.stats().total == 0)
    (letter,) = [peeked.body for peeked in letters.peek()]
    assert letter.body.request == Order("unicorn")
    assert replay_dead_letters(letters, requests) == 1
    (again,) = requests.receive()
    assert again.body == letter.body
    assert again.body.request == Order("unicorn")


@pytest.mark.parametrize("cut_off", [False, True], ids=["waiting", "at work"])
def test_what_a_graceful_restart_gives_back_counts_nothing(backend, cut_off):
    """Neither what waited behind the job at work nor, at the deadline, that job itself."""
    box, letters = backend.mailbox("requests"), backend.mailbox("dead")
    box.send_batch(list(range(10)))
    for _ in range(4):
        started, go = threading.Event(), threading.Event()

        def handler(body, started=started, go=go):
            started.set()
            assert go.wait(120)
            raise ValueError("put it back")

        dlq = DLQPolicy(letters, max_delivery_count=5)
        config = WorkerConfig(batch=10, backoff=Backoff(base=0, cap=0))
        worker = Worker(box, handler, dlq=dlq, config=config)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert started.wait(120)
        if cut_off:
            assert worker.shutdown(timeout=0.1) is False
            eventually(lambda: box.stats().in_flight == 0)
        else:
            worker.shutdown(timeout=0)
        go.set()
        thread.join(120)
    counts = [(m.delivery_count, m.nack_count) for m in box.receive(max_messages=10)]
    # Only what has failed counts: in each run one, and not the same one twice.
    assert sorted(counts) == [(1, 0)] * (10 if cut_off else 6) + [(2, 1)] * (0 if cut_off else 4)
    assert letters.stats().total == 0


def test_leases_are_kept(backend):
    box = backend.mailbox("requests")
    box.send_batch(["a", "b", "c"])
    deliveries = []
    go = threading.Event()

    def handler(body):
        if body == "a":
            assert go.wait(120)
        deliveries.append(current_lease().message.delivery_count)

    worker = Worker(box, handler, config=WorkerConfig(batch=3))
    with in_background(worker, visibility_timeout=2):
        eventually(lambda: worker.lease_extender.counters.extended >= 12, within=120)
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
        assert go.wait(120)

    worker = Worker(box, handler, config=WorkerConfig(batch=5))
    with in_background(worker):
        assert started.wait(120)
        worker.shutdown(timeout=0)
        go.set()
    stats = box.stats()
    assert (stats.pending, stats.in_flight) == (4, 0)


@pytest.mark.parametrize("way", ["reply_to", "responses", "channel"])
def test_on_sqlite_an_answer_its_acknowledgement_and_the_next_lease_are_one_commit(tmp_path, way):
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box, results = backend.mailbox("requests"), backend.mailbox("results")
        ran, statements, refused = [], [], []
        if way == "channel":
            reply = box.send_expecting_reply("a")
        else:
            box.send("a", reply_to=results if way == "reply_to" else None)
        writer = box.store._database.file.writer

        def handle(body):
            ran.append(body)
            statements.clear()
            return body.upper()

        def trace(cursor, sql, bindings):
            statements.append(sql.split()[0])
            if ran and sql == "COMMIT" and not refused:
                refused.append(list(statements))
                raise MailboxFullError("the disk is full for a moment")
            return True

        writer.exec_trace = trace
        Worker(box, handle, responses=results).run(max_iterations=3, wait_time_seconds=0)
        writer.exec_trace = None
        assert len(refused) == 1, "there was no commit to refuse"
        assert refused[0].count("BEGIN") == 1
        assert ran == ["a"]  # undone once, and then answered without running again
        assert box.stats().total == 0
        if way == "channel":
            assert reply.wait(timeout=120) == "A"
        else:
            assert [message.body for message in results.receive(max_messages=5)] == ["A"]


@pytest.mark.parametrize("settle", ["reply", "nack"])
def test_on_sqlite_a_reply_whose_commit_failed_was_not_sent(tmp_path, settle):
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box = backend.mailbox("requests")
        reply = box.send_expecting_reply("a")
        (message,) = box.receive()
        writer = box.store._database.file.writer

        def refuse(cursor, sql, bindings):
            if sql == "COMMIT":
                raise MailboxFullError("the disk is full for a moment")
            return True

        writer.exec_trace = refuse
        with pytest.raises(MailboxFullError):
            message.reply("A")
        writer.exec_trace = None
        assert not message.is_finalized
        if settle == "nack":
            assert message.nack()
            (message,) = box.receive()
        assert message.reply("A") == reply.id
        assert reply.wait(timeout=120) == "A"
        assert box.stats().total == 0


def test_a_loop_outlives_a_restart_of_redis():
    from testkit.servers import Standalone, servers_available
    from tests.services import missing

    available = servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    with Standalone(next(iter(available.values()))) as server, connect(server.url) as backend:
        box = backend.mailbox("requests")
        worker = Worker(box, str.upper)
        with in_background(worker, wait_time_seconds=20):
            assert box.send_expecting_reply("a").wait(timeout=60) == "A"
            server.restart()
            eventually(lambda: worker.heartbeat.trouble(60) is None, within=120)
            assert box.send_expecting_reply("b").wait(timeout=60) == "B"


def test_what_a_batch_has_done_is_kept_when_the_time_to_stop_is_over(backend):
    """Only the job at work and those behind it run again."""
    jobs = backend.mailbox("requests")
    entered, go = threading.Event(), threading.Event()

    def handler(body):
        if body == 2:
            entered.set()
            assert go.wait(120)

    jobs.send_batch([0, 1, 2, 3])
    worker = Worker(jobs, handler, config=WorkerConfig(batch=4))
    with in_background(worker):
        try:
            assert entered.wait(120)
            assert worker.shutdown(timeout=1) is False
            eventually(lambda: jobs.stats().in_flight == 0)
            assert [waiting.body for waiting in jobs.peek()] == [2, 3]
        finally:
            go.set()
    assert [waiting.delivery_count for waiting in jobs.peek()] == [0, 0]
