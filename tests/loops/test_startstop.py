"""Start and stop in every order."""

import os
import signal
import threading

import pytest

from testkit.interrupts import sparing_coverage
from testkit.startstop import exercise, runnable
from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives.adapters import CallableAdapter
from weakincentives.runtime import (
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    LoopGroup,
    MainLoop,
    MainLoopConfig,
    MainLoopRequest,
    Worker,
    WorkerConfig,
)

ADAPTER = CallableAdapter(lambda prompt: prompt.params)


@pytest.mark.parametrize(
    "make",
    [
        lambda box: Worker(box, str),
        lambda box: Worker(box, str, config=WorkerConfig(concurrency=4)),
        lambda box: MainLoop(adapter=ADAPTER, requests=box),
        lambda box: DLQConsumer(mailbox=box, handler=str),
    ],
    ids=["worker", "concurrent worker", "main loop", "consumer"],
)
def test_races(make, monkeypatch):
    # The thread that keeps leases lingers, and they wait for its end.
    monkeypatch.setattr("weakincentives.runtime.leases.scheduler.IDLE_SECONDS", 0.05)
    exercise(runnable(lambda: make(InMemoryMailbox("jobs"))), rounds=10)


def test_a_group_of_loops_serves_and_ends():
    box, letters = InMemoryMailbox("requests"), InMemoryMailbox("dead")
    letters.send("one that nobody reads", delay_seconds=3600)
    group = LoopGroup(
        [
            MainLoop(
                adapter=ADAPTER,
                requests=box,
                config=MainLoopConfig(concurrency=2),
                dlq=DLQPolicy(letters),
            ),
            DLQConsumer(mailbox=letters, handler=str),
        ]
    )
    thread = threading.Thread(target=group.run, kwargs={"install_signals": False})
    thread.start()
    assert box.send_expecting_reply(MainLoopRequest(request=1)).wait(timeout=60).output == 1
    depths = group.ready().body["dead_letters"]
    assert [(depth["name"], depth["depth"]) for depth in depths] == [("dead", 1)]
    assert group.shutdown(timeout=60)
    thread.join(120)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")
def test_shutdown_from_a_signal_at_any_moment():
    """The handler runs in the thread that serves, wherever that is: with a lock in its hand too."""
    for n in range(40):
        box = InMemoryMailbox("jobs")
        for m in range(2000):
            box.send(m)
        worker = Worker(box, str)
        previous = signal.signal(
            signal.SIGALRM,
            sparing_coverage(lambda *_, worker=worker: worker.shutdown(timeout=60)),
        )
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.002 + n * 0.0007)
            worker.run()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
        assert box.stats().in_flight == 0


def test_an_idle_loop_is_ended_by_a_signal():
    worker = Worker(InMemoryMailbox("jobs"), str)
    previous = signal.signal(signal.SIGUSR1, lambda *_: worker.shutdown())
    killer = threading.Thread(
        target=lambda: (eventually(lambda: worker.running), os.kill(os.getpid(), signal.SIGUSR1))
    )
    killer.start()
    try:
        worker.run(wait_time_seconds=20)
    finally:
        killer.join()
        signal.signal(signal.SIGUSR1, previous)


def test_a_loop_can_be_told_twice_while_it_works():
    box = InMemoryMailbox("jobs")
    box.send("a")
    started, go = threading.Event(), threading.Event()

    def handler(body):
        started.set()
        assert go.wait(120)

    worker = Worker(box, handler)
    with in_background(worker):
        assert started.wait(120)
        assert worker.shutdown(timeout=0) is False
        assert worker.shutdown(timeout=0) is False
        go.set()
        assert worker.shutdown(timeout=60) is True
    assert box.stats().total == 0
