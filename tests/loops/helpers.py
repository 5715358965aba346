"""What the tests of loops share."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from weakincentives.runtime import Backoff, Failure, WorkerConfig


@contextmanager
def in_background(loop: Any, **run: Any) -> Iterator[threading.Thread]:
    """Run a loop in a thread, and end it afterwards."""
    errors: list[BaseException] = []

    def call() -> None:
        try:
            loop.run(**run)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield thread
    finally:
        loop.shutdown(timeout=60)
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


NO_WAIT = WorkerConfig(backoff=Backoff(base=0, cap=0))
once = {"max_iterations": 1, "wait_time_seconds": 0}


def drained(worker, n=1):
    """Serve n messages and settle the last."""
    worker.run(max_iterations=n, wait_time_seconds=0)


def bodies(box):
    return [message.body for message in box.receive(max_messages=100)]


def explain(failure: Failure) -> str:
    return failure.text


def boom(body):
    raise ValueError(f"cannot do {body}")
