"""Much of everything: messages, queues, consumers, and purges in the middle of it."""

import threading
import time
from typing import Any

from chaos import checkers
from chaos.stage import QUEUE, Result, Stage, scenario
from testkit.waiting import eventually
from weakincentives.runtime.mailbox.errors import ReceiptHandleExpiredError

BATCH = 1000


@scenario("sqlite", "redis", full=5000, short=60)
def purge_race(stage: Stage):
    """purge against acknowledge, nack and extend of messages in flight"""
    box, other = stage.mailbox(), stage.mailbox(client="purger")
    go, gone, done = threading.Event(), threading.Event(), threading.Event()

    def purge() -> None:
        while not done.is_set():
            if go.wait(1) and not done.is_set():
                go.clear()
                other.purge()
                gone.set()

    purger = threading.Thread(target=purge, daemon=True)
    purger.start()
    for trial in range(stage.trials):
        box.send_batch(["x"] * 2)
        held = box.receive(max_messages=2, visibility_timeout=60)
        gone.clear()
        go.set()
        for message in held:
            try:
                (message.acknowledge, message.nack, lambda m=message: m.extend_visibility(60))[
                    trial % 3
                ]()
            except ReceiptHandleExpiredError:
                pass
        gone.wait(10)
        if trial % 100 == 0 or trial == stage.trials - 1:
            other.purge()
            left = stage.snapshot()
            stage.violations += checkers.exclusive(left)
            stage.violations += [f"ghost: {id} after a purge" for id in left.ids]
    done.set()
    go.set()
    purger.join(10)
    return stage.verdict()


@scenario("sqlite", "redis", full=10_000, short=100)
def many_queues(stage: Stage):
    """a message sent to, received from and acknowledged in each of many queues"""
    backend = stage.connection
    for number in range(stage.trials):
        backend.create(f"q{number}").send(number)
    known = len(backend.queues())
    wrong = [f"{known} queues are listed, not {stage.trials}"] if known != stage.trials else []
    for number in range(stage.trials):
        box = backend.create(f"q{number}")
        bodies = []
        for message in box.receive(max_messages=10, visibility_timeout=60):
            bodies.append(message.body)
            message.acknowledge()
        if bodies != [number]:
            wrong.append(f"q{number} held {bodies}")
    return Result(stage.trials, wrong)


@scenario("sqlite", "redis", full=1_000_000, short=2000)
def many_messages(stage: Stage):
    """sent, then received and acknowledged, each once and in order"""
    backend = stage.connection
    box, began = backend.mailbox(QUEUE), time.monotonic()
    for first in range(0, stage.trials, BATCH):
        box.send_batch(list(range(first, min(first + BATCH, stage.trials))))
    sent = time.monotonic() - began
    wrong = []
    if box.approximate_count() != stage.trials:
        wrong.append(f"{box.approximate_count()} are there, not {stage.trials}")
    expected, began = 0, time.monotonic()
    done: list[Any] = []
    while True:
        done = box.exchange(done, max_messages=BATCH, visibility_timeout=60)
        if not done:
            break
        bodies = [message.body for message in done]
        if bodies != list(range(expected, expected + len(bodies))):
            wrong.append(f"lost, doubled or out of order near {expected}")
        expected += len(bodies)
    if expected != stage.trials or box.approximate_count():
        wrong.append(f"{expected} came of {stage.trials}")
    taken = time.monotonic() - began
    figures = {
        "sent a second, batches of 1,000": round(stage.trials / sent),
        "done a second, batches of 1,000": round(stage.trials / taken),
    }
    return Result(stage.trials, wrong, figures)


@scenario("sqlite", "redis", full=2000, short=100)
def many_consumers(stage: Stage):
    """a hundred blocked consumers in one process; each message goes to one of them"""
    stop, boxes = threading.Event(), []

    def consume(box: Any) -> None:
        while not stop.is_set():
            for message in box.receive(visibility_timeout=60, wait_time_seconds=20):
                message.acknowledge()

    boxes = [stage.mailbox(client=f"consumer-{number}") for number in range(100)]
    threads = [threading.Thread(target=consume, args=(box,), daemon=True) for box in boxes]
    for thread in threads:
        thread.start()
    sender = stage.mailbox()
    for _ in range(stage.trials):
        sender.send("x")
    eventually(lambda: sender.approximate_count() == 0, 120, "an empty queue")
    stop.set()
    for box in boxes:
        box.close()
    for thread in threads:
        thread.join(120)
        if thread.is_alive():
            stage.violations.append("a consumer hangs")
    return stage.verdict(ordered=True)
