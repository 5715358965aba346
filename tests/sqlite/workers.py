"""What other processes do in these tests; importable, so that they can be spawned."""

import time
from typing import Any

from weakincentives.contrib.mailbox import SQLiteMailbox


def wait_until(start: float) -> None:
    time.sleep(max(start - time.time(), 0))


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


def contend(path: str, start: float, seconds: float, results: Any) -> None:
    """Send, receive and acknowledge as often as possible; tell how often that was."""
    box = SQLiteMailbox[int]("jobs", path, durability="normal")
    wait_until(start)
    count = 0
    while time.time() < start + seconds:
        box.send(count)
        for message in box.receive():
            message.acknowledge()
            count += 1
    results.put(count)


def open_and_send(path: str, start: float) -> None:
    wait_until(start)
    SQLiteMailbox[int]("jobs", path, durability="normal").send(1)
