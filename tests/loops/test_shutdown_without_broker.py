"""A loop ends within its deadline, also while its mailbox cannot be reached or does not answer."""

import threading
import time

import pytest

from testkit.waiting import eventually
from tests.services import missing
from weakincentives import connect
from weakincentives.runtime import LoopGroup, Worker, WorkerConfig

servers = pytest.importorskip("testkit.servers")

TIMEOUT = 2.0
MUCH = 10.0
"""What a busy machine may take longer; four threads one after the other would take far more."""


@pytest.fixture
def server():
    available = servers.servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    with servers.Standalone(next(iter(available.values()))) as server:
        yield server


@pytest.fixture(params=["killed", "hangs"])
def broken(request, server):
    """Return what makes the server unreachable."""
    yield server.kill if request.param == "killed" else server.pause
    if request.param == "hangs":
        server.resume()


class Gate:
    def __init__(self, parties):
        self.entered = threading.Semaphore(0)
        self.go = threading.Event()
        self.parties = parties

    def __call__(self, body):
        self.entered.release()
        assert self.go.wait(120)
        return body

    def wait(self):
        for _ in range(self.parties):
            assert self.entered.acquire(timeout=30)


def serve(worker):
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    eventually(lambda: worker.heartbeat.reaches)
    return thread


@pytest.mark.parametrize("batch", [1, 3])
def test_an_idle_loop_ends_soon(server, broken, batch):
    """Nothing is in hand, so nothing is worth waiting for."""
    with connect(server.url) as backend:
        config = WorkerConfig(concurrency=4, batch=batch)
        worker = Worker(backend.mailbox("jobs"), str, config=config)
        thread = serve(worker)
        broken()
        began = time.monotonic()
        assert worker.shutdown(timeout=30)
        thread.join(MUCH)
        assert not thread.is_alive()
        assert time.monotonic() - began < 2 * MUCH


@pytest.mark.parametrize("phase", ["at work", "finished"])
@pytest.mark.parametrize("batch", [1, 3])
def test_what_is_in_hand_does_not_hold_up_the_end(server, broken, batch, phase):
    """Neither the settlement of finished jobs nor giving back the others outlasts the deadline."""
    with connect(server.url) as backend:
        box, replies = backend.mailbox("jobs"), backend.mailbox("replies")
        box.send_batch(list(range(4 * batch)), reply_to=replies)
        gate = Gate(4)
        config = WorkerConfig(concurrency=4, batch=batch)
        worker = Worker(box, gate, config=config)
        serve(worker)
        gate.wait()
        broken()
        if phase == "finished":
            gate.go.set()
        began = time.monotonic()
        in_time = worker.shutdown(timeout=TIMEOUT)
        # A thread that cannot send its answer may give up a moment before the deadline.
        assert in_time is False or phase == "finished"
        assert time.monotonic() - began < TIMEOUT + MUCH
        gate.go.set()


def test_a_group_ends_within_its_deadline(server, broken):
    """As `wink worker` does: no job at all, and all of them ended in time."""
    with connect(server.url) as backend:
        config = WorkerConfig(concurrency=4)
        workers = [Worker(backend.mailbox(name), str, config=config) for name in ("a", "b")]
        group = LoopGroup(workers, shutdown_timeout=30)
        thread = threading.Thread(target=group.run, kwargs={"install_signals": False}, daemon=True)
        thread.start()
        eventually(lambda: all(worker.heartbeat.reaches for worker in workers))
        broken()
        began = time.monotonic()
        assert group.shutdown()
        thread.join(MUCH)
        assert group.drained
        assert time.monotonic() - began < 2 * MUCH


def test_a_settlement_is_repeated_until_the_deadline(server):
    """A server that comes back in time gets the results of a loop that is ending."""
    with connect(server.url) as backend:
        box, replies = backend.mailbox("jobs"), backend.mailbox("replies")
        box.send("a", reply_to=replies)
        gate = Gate(1)
        worker = Worker(box, gate)
        serve(worker)
        gate.wait()
        server.pause()
        try:
            gate.go.set()
            ended = []
            waiting = threading.Thread(target=lambda: ended.append(worker.shutdown(timeout=60)))
            waiting.start()
            eventually(worker._stop.is_set)
        finally:
            server.resume()
        waiting.join(60)
        assert ended == [True]
        assert [message.body for message in replies.receive()] == ["a"]
        assert box.stats().total == 0


class Slow:
    """A mailbox of another kind, whose receive cannot be interrupted."""

    name = "slow"

    def __init__(self):
        self.receives = 0

    def receive(self, *, max_messages, visibility_timeout, wait_time_seconds):
        self.receives += 1
        time.sleep(wait_time_seconds)
        return []


def test_threads_do_not_wait_for_each_others_last_look():
    box = Slow()
    worker = Worker(box, str, config=WorkerConfig(concurrency=8))
    thread = serve(worker)
    # each thread has looked without waiting, and one waits for all
    eventually(lambda: box.receives >= 9)
    before = box.receives
    assert worker.shutdown(timeout=30)
    thread.join(120)
    assert box.receives <= before + 1
