"""Tests that every message that can be sent can also be dead-lettered and replayed."""

import math
import re
from typing import Any

import msgspec
import pytest

from weakincentives.runtime import Backoff, DLQPolicy, Worker, WorkerConfig, replay_dead_letters
from weakincentives.runtime.mailbox.errors import PayloadTooLargeError
from weakincentives.serde import MAX_DEPTH

from .harness import Harness

__all__ = ["DeadLetters"]

QUOTES = '"\\\n'
"""Characters that take more bytes when they are encoded as JSON."""


class DeadLetters(Harness):
    """The largest messages a mailbox accepts can be dead-lettered by a worker and replayed."""

    def test_the_largest_body_is_dead_lettered_and_replayed(self) -> None:
        box, letters = self.failing()
        body = self.largest(box, "x", {})
        self.assert_dead_lettered(box, letters)
        assert self.replayed(box, letters).body == body

    def test_the_largest_body_of_quotes_is_dead_lettered_and_replayed(self) -> None:
        box, letters = self.failing()
        body = self.largest(box, QUOTES, {})
        self.assert_dead_lettered(box, letters)
        assert self.replayed(box, letters).body == body

    def test_large_attributes_are_dead_lettered_and_replayed(self) -> None:
        box, letters = self.failing()
        attributes = {"trace_id": "t" * (box.limits.max_bytes // 2)}
        body = self.largest(box, "x", attributes)
        self.assert_dead_lettered(box, letters)
        message = self.replayed(box, letters)
        assert message.body == body
        assert dict(message.attributes) == attributes

    def test_the_deepest_body_is_dead_lettered_and_replayed(self) -> None:
        box, letters = self.failing()
        body: Any = "bottom"
        for _ in range(MAX_DEPTH):
            body = [body]
        box.send(body)
        self.assert_dead_lettered(box, letters)
        assert self.replayed(box, letters).body == body

    def test_the_largest_body_of_another_type_is_dead_lettered_and_replayed(self) -> None:
        box, letters = self.failing(body_type=int)
        if self.keeps_bodies(box):
            pytest.skip("this mailbox keeps bodies as objects: every one can be read")
        sender = self.again(box)
        body = self.largest(sender, "x", {})
        self.assert_dead_lettered(box, letters)
        assert self.replayed(sender, letters).body == body

    def failing(self, **options: Any) -> tuple[Any, Any]:
        """Return a mailbox and the mailbox of its dead letters."""
        box, letters = self.mailbox(**options), self.mailbox()
        if self.driver.face == "async":
            pytest.skip("workers use the blocking face")
        return box, letters

    def largest(self, box: Any, text: str, attributes: dict[str, str]) -> str:
        """Send the largest body made of ``text`` that this mailbox accepts."""
        most = 1000 if self.keeps_bodies(box) else box.limits.max_bytes  # objects have no size
        written = (len(msgspec.json.encode(text)) - 2) // len(text)  # bytes of each character
        length = most // written
        for _ in range(20):
            body = (text * (length // len(text) + 1))[:length]
            try:
                box.send(body, attributes=attributes or None)
                return body
            except PayloadTooLargeError as error:
                sizes = re.search(r"has (\d+) bytes.* takes (\d+)", str(error))
                assert sizes is not None, error
                length -= math.ceil((int(sizes[1]) - int(sizes[2])) / written)
        raise AssertionError("no body fits")

    def assert_dead_lettered(self, box: Any, letters: Any) -> None:
        """Run a worker that fails on the only message, and check the dead letter."""

        def fail(body: Any) -> None:
            raise ValueError("\x1b" * 100_000)

        Worker(
            box.raw,
            fail,
            dlq=DLQPolicy(letters.raw, max_delivery_count=1),
            config=WorkerConfig(backoff=Backoff(base=0, cap=0)),
        ).run(max_iterations=2, wait_time_seconds=1, visibility_timeout=60)
        assert box.receive() == []

    def replayed(self, box: Any, letters: Any) -> Any:
        """Replay the only dead letter and return the body that is received."""
        assert replay_dead_letters(letters.raw, box.raw) == 1
        message = self.take_one(box)
        assert letters.receive() == []
        return message
