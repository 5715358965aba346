"""Tests that bodies and replies of every supported type come back equal."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
import pytest

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime.mailbox.errors import InvalidParameterError, SerializationError
from weakincentives.runtime.mailbox.seam.store import Outgoing

from .harness import Harness

__all__ = ["RoundTrip"]

T = TypeVar("T")


class Colour(Enum):
    RED = 1
    BLUE = 2


class Size(StrEnum):
    SMALL = "s"


@dataclass(frozen=True, slots=True)
class Item:
    name: str
    colour: Colour = Colour.RED
    size: Size | None = None


@dataclass(frozen=True, slots=True)
class Order:
    id: UUID
    placed: datetime
    items: tuple[Item, ...]
    due: date | None = None
    price: Decimal = Decimal("1.10")
    tags: frozenset[str] = field(default_factory=frozenset)
    by_name: dict[str, Item] = field(default_factory=dict)


@FrozenDataclass()
class Request(Generic[T]):
    request: T
    note: str | None = None


class Point(msgspec.Struct, frozen=True):
    x: int
    y: float = 0.5


class Circle(msgspec.Struct, tag=True, frozen=True):
    r: int


class Square(msgspec.Struct, tag=True, frozen=True):
    a: int


@dataclass(frozen=True)
class Started:
    at: int


@dataclass(frozen=True)
class Finished:
    at: int


@dataclass
class Nested:
    one: Started | Finished


ITEM = Item("bolt", Colour.BLUE, Size.SMALL)
ORDER = Order(
    UUID(int=7),
    datetime(2024, 2, 29, 12, 30, 15, 123456, tzinfo=UTC),
    (ITEM, Item("nut")),
    date(2024, 3, 1),
    Decimal("12.340"),
    frozenset({"a", "b"}),
    {"x": ITEM},
)

BODIES = {
    "int": (int, 3),
    "text": (str, 'snow ☃ \x00 \u2028 "quoted" \\'),
    "none": (str | None, None),
    "float": (float, 0.1),
    "big int": (int, 2**62),
    "list": (list[int], [1, 2]),
    "tuple": (tuple[int, str], (1, "a")),
    "uuid": (UUID, UUID(int=5)),
    "datetime": (datetime, datetime(2024, 1, 1, tzinfo=UTC)),
    "enum": (Colour, Colour.BLUE),
    "dataclass": (Order, ORDER),
    "generic": (Request[Order], Request[Order](request=ORDER)),
    "list of dataclasses": (list[Item], [ITEM]),
    "struct": (Point, Point(1, 2.5)),
    "tagged structs": (Circle | Square, Square(3)),
    "union by name": (Started | Finished, Finished(2)),
    "optional dataclass": (Item | None, ITEM),
    "bytes": (bytes, b"\x00\xff"),
}


class RoundTrip(Harness):
    """Bodies and replies are decoded as the types that the mailbox declares."""

    @pytest.mark.parametrize("kind", BODIES)
    def test_bodies_and_replies_come_back_equal(self, kind: str) -> None:
        declared, body = BODIES[kind]
        box = self.mailbox(body_type=declared)
        box.send(body)
        box.send_batch([body])
        messages = self.take(box, 2)
        assert [message.body for message in messages] == [body, body]
        assert type(messages[0].body) is type(body)
        assert messages[0].body is messages[0].body

    def test_pydantic_models(self) -> None:
        pydantic = pytest.importorskip("pydantic")
        model: Any = pydantic.create_model("Model", n=(int, ...), when=(datetime, ...))
        body = model(n=1, when=datetime(2024, 1, 1, tzinfo=UTC))
        box = self.mailbox(body_type=model)
        box.send(body)
        assert self.take_one(box).body == body

    def test_replies_have_the_declared_type(self) -> None:
        box = self.mailbox(body_type=str, reply_type=Order)
        reply = self.ask(box)
        self.take_one(box).reply(ORDER)
        assert reply.wait(timeout=60) == ORDER

    def test_told_nothing_bodies_are_plain_json(self) -> None:
        box = self.mailbox()
        if self.keeps_bodies(box):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        box.send(ITEM)
        assert self.take_one(box).body == {"name": "bolt", "colour": 2, "size": "s"}

    def test_a_body_of_the_wrong_type_fails_that_message_only(self) -> None:
        sender = self.mailbox()
        if self.keeps_bodies(sender):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        reader = self.again(sender, body_type=Item)
        self.fill(sender, {"name": "good"}, {"nonsense": True}, {"name": "also good"})
        good, bad = [], []
        for message in self.take(reader, 3):
            try:
                good.append(message.body.name)
                assert message.acknowledge() is True
            except SerializationError:
                bad.append(message)
        assert sorted(good) == ["also good", "good"]
        (undecodable,) = bad
        with pytest.raises(SerializationError):
            _ = undecodable.body
        assert undecodable.nack() is True
        assert self.take_one(sender).body == {"nonsense": True}

    @pytest.mark.parametrize(
        "payload",
        [b"", b"\xff\xfe", b"{", b"[]", b'"text"', b'{"v":99,"b":1}', b'{"b":' + b"[" * 5000],
        ids=["empty", "not text", "cut off", "a list", "a text", "a newer version", "a bomb"],
    )
    def test_bytes_that_no_one_can_read(self, payload: bytes) -> None:
        box = self.mailbox()
        if not self.keeps_bytes(box):
            pytest.skip("this mailbox does not keep envelopes as bytes")
        self.driver.call(box.store.put, [Outgoing("hostile", payload)])
        box.send("fine")
        messages = {message.id: message for message in self.take(box, 2)}
        hostile = messages.pop("hostile")
        assert [message.body for message in messages.values()] == ["fine"]
        with pytest.raises(SerializationError):
            _ = hostile.body
        assert bytes(hostile.payload) == payload
        assert (dict(hostile.attributes), hostile.reply_to) == ({}, None)
        assert hostile.expects_reply() is False
        assert hostile.acknowledge() is True

    def test_a_union_is_resolved_among_its_members_only(self) -> None:
        sender = self.mailbox()
        if self.keeps_bodies(sender):
            pytest.skip("this mailbox keeps bodies as objects: nothing is encoded")
        reader = self.again(sender, body_type=Started | Finished)
        sender.send(ITEM)
        message = self.take_one(reader)
        with pytest.raises(SerializationError, match="Started"):
            _ = message.body

    def test_a_nested_union_of_dataclasses_is_refused_when_declared(self) -> None:
        with pytest.raises(InvalidParameterError, match="tag"):
            self.mailbox(body_type=Nested)

    def test_the_envelope_does_not_leak_into_the_body(self) -> None:
        box = self.mailbox()
        body = {"v": 1, "b": 2, "t": "x", "r": "y", "c": "z", "a": {"k": "v"}}
        box.send(body)
        message = self.take_one(box)
        assert message.body == body
        assert json.dumps(dict(message.attributes)) == "{}"
