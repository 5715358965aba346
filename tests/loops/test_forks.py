"""A child that a job forks leaves its parent's messages alone, however it ends."""

import os
import sys
import threading

import pytest

from testkit.forks import in_fork
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime import DLQPolicy, Worker, WorkerConfig

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def test_a_forked_child_that_exits_settles_nothing(tmp_path):
    backend = connect(f"sqlite:///{tmp_path}/q.db")
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    box.send_batch([0, 1, 2])
    parent, waiting, exits = os.getpid(), [], []

    def handler(body):
        if body == 0:
            pid = os.fork()
            if pid == 0:
                sys.exit(3)
            exits.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        waiting.append(box.stats().pending)

    policy = DLQPolicy(mailbox=letters, max_delivery_count=1)
    try:
        Worker(box, handler, dlq=policy, config=WorkerConfig(batch=3)).run(max_iterations=1)
    finally:
        if os.getpid() != parent:
            os._exit(3)
    assert exits == [3]
    assert waiting == [0, 0, 0]
    assert box.stats().pending + letters.stats().pending == 0


@pytest.mark.parametrize("concurrency", [1, 2])
def test_a_forked_child_that_returns_from_its_job_ends(tmp_path, concurrency):
    """It would go on as a worker of its parent's loop, with its parent's messages."""
    backend = connect(f"sqlite:///{tmp_path}/q.db")
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    box.send_batch([0, 1, 2, 3])
    parent, ledger, children = os.getpid(), tmp_path / "ledger", []

    def handler(body):
        if body == 0:
            child = os.fork()
            if child:
                children.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        with ledger.open("a") as file:
            file.write(f"{'parent' if os.getpid() == parent else 'child'} {body}\n")

    policy = DLQPolicy(mailbox=letters, max_delivery_count=1)
    config = WorkerConfig(batch=2, concurrency=concurrency)
    try:
        Worker(box, handler, dlq=policy, config=config).run(max_iterations=4, wait_time_seconds=0)
    except SystemExit as end:
        if os.getpid() != parent:
            os._exit(end.code)
        raise
    finally:
        if os.getpid() != parent:
            os._exit(9)
    assert children == [0]
    assert sorted(ledger.read_text().splitlines()) == [
        "child 0",
        "parent 0",
        "parent 1",
        "parent 2",
        "parent 3",
    ]
    assert box.stats().total + letters.stats().total == 0


def test_a_forked_child_that_shuts_the_loop_down_gives_nothing_back(tmp_path):
    with connect(f"sqlite:///{tmp_path}/q.db") as backend:
        box = backend.mailbox("jobs")
        box.send_batch([0, 1])
        at_work, go_on, runs = threading.Event(), threading.Event(), []

        def handler(body):
            runs.append(body)
            at_work.set()
            go_on.wait(60)

        worker = Worker(box, handler, config=WorkerConfig(batch=2))
        thread = threading.Thread(target=worker.run, daemon=True)
        thread.start()
        assert at_work.wait(120)
        child = os.fork()
        if child == 0:
            worker.shutdown(timeout=0.2)
            os._exit(0)
        os.waitpid(child, 0)
        assert box.stats().in_flight == 2
        go_on.set()
        eventually(lambda: box.stats().total == 0)
        assert runs == [0, 1]
        assert worker.shutdown(timeout=60)


def test_a_forked_child_can_run_a_worker_that_its_parent_runs(tmp_path):
    """The parent's thread has the turn to wait for messages, and does not exist in the child."""
    box = connect(f"sqlite:///{tmp_path}/q.db").mailbox("jobs")
    ledger = tmp_path / "ledger"

    def handler(body):
        with ledger.open("a") as file:
            file.write(f"{os.getpid()} {body}\n")

    worker = Worker(box, handler)
    thread = threading.Thread(target=worker.run, daemon=True)
    thread.start()
    eventually(lambda: worker.heartbeat.reaches, 60, "a first look")
    box.send("parent's")
    eventually(ledger.exists, 60, "a job of the parent")

    def child():
        assert not worker.running
        box.send("anybody's")
        worker.run(max_iterations=2, wait_time_seconds=0.1)
        assert worker.shutdown(timeout=60)

    assert in_fork(child) == 0
    assert worker.running
    eventually(lambda: len(ledger.read_text().splitlines()) == 2, 60, "the other job")
    assert worker.shutdown(timeout=60)
    thread.join(60)
    assert box.stats().total == 0
