"""Tests that bad arguments raise an error naming argument and value, and change nothing."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

import pytest

from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    PayloadTooLargeError,
    SerializationError,
    UnsupportedOperationError,
)

from .harness import LONG, Harness, unique_name

__all__ = ["Validation"]


class Tag(str):
    """A subclass of str."""

    __slots__ = ()

    def __str__(self) -> str:
        return "not the text itself"


class Level(StrEnum):
    """An enum of strings."""

    HIGH = "high"


class Unspeakable(Exception):
    """An error whose ``__str__`` raises."""

    def __str__(self) -> str:
        raise RuntimeError


@dataclass
class Picky:
    """A type that raises while a body is decoded."""

    item: str
    error: ClassVar[Exception]
    refuses: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.refuses and self.item == "refused":
            raise self.error


BAD_SECONDS = [-1, -0.001, math.nan, math.inf, -math.inf, 10.0**12, "5", None, True, [1], 1j]
BAD_COUNTS = [0, -1, 1.0, 1.5, math.nan, 10**9, "5", None, True, [1]]
BAD_NAMES = ["", "a b", "a/b", "{x}", "name\n", "ä", "x" * 81, "../up", "a\x00b", 7, None, b"x"]
BAD_IDS = ["", "a b", "x" * 129, "ä", "a\n", "{x}", 7, b"x", True]
BAD_ATTRIBUTES = [{"k": 1}, {1: "v"}, {"k": None}, ["k"], "k", 7]
BAD_BODIES: dict[str, Callable[[], Any]] = {
    "an object": object,
    "a function": lambda: len,
    "an object inside": lambda: {"a": [object()]},
    "NaN": lambda: {"a": [1.0, math.nan]},
    "infinity": lambda: [math.inf],
    "half a character": lambda: "\ud800",
    "half a character as a key": lambda: {"\ud800": 1},
    "a tuple as a key": lambda: {(1, 2): 3},
    "a nesting bomb": lambda: nested(100_000),
    "a body in itself": lambda: recursive(),
}


def nested(depth: int) -> list[Any]:
    """Return a list nested to this depth."""
    outer: list[Any] = []
    for _ in range(depth):
        outer = [outer]
    return outer


def recursive() -> list[Any]:
    """Return a list that contains itself."""
    loop: list[Any] = []
    loop.append(loop)
    return loop


def invalid(name: str, value: object) -> Any:
    """Expect an `InvalidParameterError` that names the argument and shows the value."""
    return _Invalid(name, value)


class _Invalid:
    def __init__(self, name: str, value: object) -> None:
        self.name, self.value = name, value

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> bool:
        assert error is not None, f"{self.name}={self.value!r:.100} was accepted"
        if not isinstance(error, InvalidParameterError):
            return False
        assert isinstance(error, ValueError)
        assert self.name in str(error), str(error)
        assert repr(self.value)[:60] in str(error), str(error)
        assert len(str(error)) < 500
        return True


class Validation(Harness):
    """Arguments are checked before anything happens."""

    def assert_untouched(self, box: Any) -> None:
        """Check that the queue is still empty."""
        assert box.receive() == []
        if box.capabilities.exact_counts:
            assert box.approximate_count() == 0

    def test_names(self) -> None:
        for name in BAD_NAMES:
            with invalid("name", name):
                self.make_mailbox(name)  # type: ignore[arg-type]

    def test_names_at_the_limit(self) -> None:
        name = f"{unique_name()}-".ljust(80, "x")
        assert self.make_mailbox(name).name == name

    def test_options_of_a_mailbox(self) -> None:
        for option, values in {
            "max_size": [0, -1, 1.5, True, "3", math.nan],
            "default_ttl": [0, -1, math.nan, math.inf, True, "3", 10.0**12],
        }.items():
            for value in values:
                try:
                    with invalid(option, value):
                        self.make_mailbox(unique_name(), **{option: value})
                except UnsupportedOperationError as error:
                    pytest.skip(f"declared: {error}")

    def test_delays(self) -> None:
        box = self.mailbox()
        for value in [*BAD_SECONDS, *self.too_much(box.limits.max_delay, box)]:
            with invalid("delay_seconds", value):
                box.send(1, delay_seconds=value)
            with invalid("delay_seconds", value):
                box.send_batch([1], delay_seconds=value)
            with invalid("delay_seconds", value):
                box.send_expecting_reply(1, delay_seconds=value)
        self.assert_untouched(box)

    def test_receiving(self) -> None:
        box = self.mailbox()
        box.send("stays")
        for value in [*BAD_SECONDS, *self.too_much(box.limits.max_visibility, box)]:
            with invalid("visibility_timeout", value):
                box.receive(visibility_timeout=value)
        for value in [*BAD_SECONDS, *self.too_much(box.limits.max_wait, box)]:
            with invalid("wait_time_seconds", value):
                box.receive(wait_time_seconds=value)
        for value in [*BAD_COUNTS, box.limits.max_batch + 1]:
            with invalid("max_messages", value):
                box.receive(max_messages=value)
            with invalid("max_messages", value):
                box.exchange([], max_messages=value)
        assert self.take_one(box).delivery_count == 1

    def test_settling(self) -> None:
        box = self.mailbox()
        box.send(1)
        message = self.take_one(box)
        for value in [*BAD_SECONDS, *self.too_much(box.limits.max_visibility, box)]:
            with invalid("visibility_timeout", value):
                message.nack(visibility_timeout=value)
            with invalid("timeout", value):
                message.extend_visibility(value)
        assert not message.is_finalized
        assert message.acknowledge() is True

    def test_peeking(self) -> None:
        box = self.mailbox()
        self.needs(box, "peeks")
        for value in BAD_COUNTS:
            with invalid("limit", value):
                box.peek(value)

    def test_batches(self) -> None:
        box = self.mailbox()
        for bodies in ("text", b"bytes", 7, None, {"a": 1}, {1, 2}, iter([1])):
            with pytest.raises(InvalidParameterError, match="bodies"):
                box.send_batch(bodies)
        self.assert_untouched(box)

    def test_acknowledging_what_is_no_message(self) -> None:
        box = self.mailbox()
        box.send(1)
        message = self.take_one(box)
        for messages in (["handle"], [None], [message, 7], message, None, "text"):
            with pytest.raises(InvalidParameterError, match="messages"):
                box.acknowledge_batch(messages)
        assert message.acknowledge() is True

    def test_messages_of_another_mailbox(self) -> None:
        box, other = self.mailbox(), self.mailbox()
        box.send(1)
        message = self.take_one(box)
        with pytest.raises(InvalidParameterError, match=other.name):
            other.acknowledge_batch([message])
        with pytest.raises(InvalidParameterError, match=other.name):
            other.exchange([message])
        assert message.acknowledge() is True

    def test_message_ids(self) -> None:
        box = self.mailbox()
        self.needs(box, "idempotent_send")
        for value in BAD_IDS:
            with invalid("message_id", value):
                box.send(1, message_id=value)
        self.assert_untouched(box)
        for value in ("x" * 128, "aA0_.:=-"):
            assert box.send(value, message_id=value) == value
        assert sorted(self.drain(box)) == ["aA0_.:=-", "x" * 128]

    def test_attributes(self) -> None:
        box = self.mailbox()
        for value in BAD_ATTRIBUTES:
            with invalid("attributes", value):
                box.send(1, attributes=value)
            with invalid("attributes", value):
                box.send_expecting_reply(1, attributes=value)
        self.assert_untouched(box)

    def test_reply_addresses(self) -> None:
        box = self.mailbox()
        for value in ("a name", 7, object()):
            with invalid("reply_to", value):
                box.send(1, reply_to=value)
            with invalid("reply_to", value):
                box.send_batch([1], reply_to=value)
        self.assert_untouched(box)

    def test_reply_timeouts(self) -> None:
        box = self.mailbox()
        for value in [*BAD_SECONDS, 0]:
            with invalid("reply_timeout", value):
                box.send_expecting_reply(1, reply_timeout=value)
        self.assert_untouched(box)
        reply = self.ask(box)
        for value in [-1, math.nan, math.inf, "5", True]:
            with invalid("timeout", value):
                reply.wait(timeout=value)

    @pytest.mark.parametrize("kind", BAD_BODIES)
    def test_bodies_that_are_no_json(self, kind: str) -> None:
        box = self.mailbox()
        if self.keeps_bodies(box):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        body = BAD_BODIES[kind]()
        attempts: list[Callable[[], Any]] = [
            lambda: box.send(body),
            lambda: box.send(body, attributes={"k": "v"}),
            lambda: box.send_batch(["fine", body]),
            lambda: box.send_expecting_reply(body),
        ]
        for attempt in attempts:
            with pytest.raises((SerializationError, UnsupportedOperationError)) as caught:
                attempt()
            assert len(str(caught.value)) < 500
        self.assert_untouched(box)

    def test_text_of_a_subclass_is_text(self) -> None:
        box = self.mailbox()
        box.send(1, attributes={Tag("k"): Tag("v"), "level": Level.HIGH})
        message = self.take_one(box)
        assert dict(message.attributes) == {"k": "v", "level": "high"}
        assert {type(text) for pair in message.attributes.items() for text in pair} == {str}
        if box.capabilities.idempotent_send:
            name = unique_name()
            assert box.send(2, message_id=Tag(name)) == name
            assert self.take_one(box).id == name

    def test_a_delay_beyond_the_reply_timeout(self) -> None:
        box = self.mailbox()
        self.needs(box, "delays")
        for delay, timeout in ((2, 1), (2, 2), (900, 300)):
            with pytest.raises(InvalidParameterError, match=f"{delay}.*{timeout}") as caught:
                box.send_expecting_reply(1, delay_seconds=delay, reply_timeout=timeout)
            assert "delay_seconds" in str(caught.value)
            assert "reply_timeout" in str(caught.value)
        self.assert_untouched(box)

    @pytest.mark.parametrize(
        "error", [KeyError("k"), ZeroDivisionError(), LookupError(), ValueError("v"), Unspeakable()]
    )
    def test_a_type_that_refuses_a_body_fails_that_message_only(self, error: Exception) -> None:
        box = self.mailbox(body_type=Picky)
        if self.keeps_bodies(box):
            pytest.skip("this mailbox keeps bodies as objects: nothing is decoded")
        Picky.error = error
        for item in ("fine", "refused", "fine"):
            Picky.refuses = False
            box.send(Picky(item))
        Picky.refuses = True
        messages = self.take(box, 3)
        bodies = []
        for message in messages:
            try:
                bodies.append(message.body.item)
            except SerializationError as refusal:
                assert "Picky" in str(refusal)
                bodies.append("refused")
        assert sorted(bodies) == ["fine", "fine", "refused"]
        for message in messages:
            message.acknowledge()

    def test_attributes_that_are_no_text(self) -> None:
        box = self.mailbox()
        if self.keeps_bodies(box):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        with pytest.raises((SerializationError, InvalidParameterError)):
            box.send(1, attributes={"k": "\ud800"})
        self.assert_untouched(box)

    def test_bodies_that_are_too_large(self) -> None:
        box = self.mailbox()
        if self.keeps_bodies(box):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        body = "x" * (box.limits.max_bytes + 1)
        with pytest.raises(PayloadTooLargeError, match=str(box.limits.max_bytes)):
            box.send(body)
        with pytest.raises(PayloadTooLargeError, match=str(box.limits.max_bytes)):
            box.send_batch(["fine", body])
        with pytest.raises(PayloadTooLargeError):
            box.send("small", attributes={"k": body})
        self.assert_untouched(box)

    def test_a_large_body_that_fits(self) -> None:
        box = self.mailbox()
        body = "x" * (box.limits.max_bytes * 3 // 4)
        box.send(body)
        assert self.take_one(box, LONG).body == body

    def too_much(self, limit: float, box: Any) -> list[Any]:
        """Return values above the limit that the backend declares."""
        return [math.floor(limit) + 1, *([] if box.limits.fractions else [1.5])]
