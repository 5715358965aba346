"""Orders that fail, and what becomes of them."""

from dataclasses import dataclass

from weakincentives.runtime import (
    Backoff,
    DeadLetter,
    DLQPolicy,
    LeaseExtenderConfig,
    Worker,
    WorkerConfig,
)

AT_ONCE = WorkerConfig(backoff=Backoff(base=0, cap=0))
UNKEPT = WorkerConfig(
    backoff=Backoff(base=0, cap=0), lease_extender=LeaseExtenderConfig(enabled=False)
)


@dataclass(frozen=True)
class Order:
    item: str
    count: int = 1


def boom(body):
    raise ValueError(f"cannot do {body} with password=hunter2")


def run(worker, n=1):
    worker.run(max_iterations=n, wait_time_seconds=0)


def the_letter(letters):
    (message,) = letters.receive(max_messages=10)
    message.nack()
    assert isinstance(message.body, DeadLetter)
    return message.body


def fill(box, letters, *items, **policy):
    for item in items:
        box.send(Order(item))
    policy = DLQPolicy(letters, max_delivery_count=1, **policy)
    run(Worker(box, boom, dlq=policy), len(items))
    assert letters.stats().pending == len(items)
