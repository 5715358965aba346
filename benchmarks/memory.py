"""In memory: a message's whole life beside ``queue.Queue``."""

import queue
from collections.abc import Iterator

from benchmarks.harness import Row, compare, timed
from weakincentives.runtime.mailbox import InMemoryMailbox

COUNT = 20_000


def rows() -> Iterator[Row]:
    """Measure the in-memory budget."""
    yield compare("send + receive(1) + ack, one thread", _mailbox, _queue, 0.25, rounds=9)


def _mailbox() -> float:
    mailbox: InMemoryMailbox[int] = InMemoryMailbox("bench")

    def lives() -> None:
        for number in range(COUNT):
            mailbox.send(number)
            mailbox.receive()[0].acknowledge()

    return COUNT / timed(lives)


def _queue() -> float:
    box: queue.Queue[int] = queue.Queue()

    def lives() -> None:
        for number in range(COUNT):
            box.put(number)
            box.get()
            box.task_done()

    return COUNT / timed(lives)
