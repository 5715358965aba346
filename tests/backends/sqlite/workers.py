"""What other processes do in these tests."""

import time
from typing import Any

from testkit.forked import preload
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.runtime.mailbox.replies.parts import PartCodec
from weakincentives.runtime.mailbox.testing import driven

preload(__name__)


def echo(path: str) -> None:
    """Answer every message with its own body until told to stop."""
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", path)
    answers: SQLiteMailbox[Any, Any] = SQLiteMailbox("answers", path)
    while True:
        for message in box.receive(wait_time_seconds=30):
            if message.body == "stop":
                message.acknowledge()
                return
            if message.expects_reply():
                message.reply(message.body)
            else:
                answers.send(message.body)
                message.acknowledge()


def send_many(path: str, count: int) -> None:
    SQLiteMailbox[int]("jobs", path).send_batch(list(range(count)))


def send_each(path: str, first: int, count: int) -> None:
    """Send numbers, one after the other."""
    box = SQLiteMailbox[int]("jobs", path, durability="normal")
    for number in range(first, first + count):
        box.send(number)


def contend(path: str, barrier: Any, seconds: float, results: Any) -> None:
    """Send, receive and acknowledge as often as possible; tell how often that was."""
    box = SQLiteMailbox[int]("jobs", path, durability="normal")
    barrier.wait(120)
    until = time.monotonic() + seconds
    count = 0
    while time.monotonic() < until:
        box.send(count)
        for message in box.receive():
            message.acknowledge()
            count += 1
    results.put(count)


def open_and_send(path: str, barrier: Any) -> None:
    barrier.wait(120)
    SQLiteMailbox[int]("jobs", path, durability="normal").send(1)


def emit_and_reply(path: str, count: int) -> None:
    """Answer one message, after so many parts."""
    box: SQLiteMailbox[Any, Any] = SQLiteMailbox("jobs", path)
    (message,) = box.receive(wait_time_seconds=60)
    codec = PartCodec(keeps_objects=False)
    for number in range(count):
        assert driven(message._emit([codec.sealed(number)]))
    message.reply("answer")
