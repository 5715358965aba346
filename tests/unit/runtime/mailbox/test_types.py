from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import pytest

from weakincentives.runtime.mailbox import InMemoryMailbox, InvalidParameterError

T = TypeVar("T")


@dataclass(frozen=True)
class Order:
    item: str


@dataclass(frozen=True)
class Receipt:
    total: int


@dataclass(frozen=True)
class Cat:
    name: str


class Orders(InMemoryMailbox[Order, Receipt]):
    pass


class Answered(InMemoryMailbox[T, Receipt], Generic[T]):
    pass


def told(box: InMemoryMailbox[Any, Any]) -> tuple[Any, Any]:
    return box._types.body, box._types.reply


def body_after_json(box: InMemoryMailbox[Any, Any], body: object) -> Any:
    box.send(body)
    (message,) = box.receive()
    return message.body


def test_types_by_argument() -> None:
    assert told(InMemoryMailbox("x", body_type=Order, reply_type=Receipt)) == (Order, Receipt)


def test_types_by_brackets() -> None:
    box = InMemoryMailbox[Order, Receipt]("x", serialize=True)
    assert told(box) == (Order, Receipt)
    assert body_after_json(box, Order("tea")) == Order("tea")


def test_one_bracket_is_enough() -> None:
    box = InMemoryMailbox[Order]("x", serialize=True)
    assert box._types.body is Order
    assert body_after_json(box, Order("tea")) == Order("tea")


def test_types_by_subclass() -> None:
    assert told(Orders("x")) == (Order, Receipt)
    assert body_after_json(Orders("x", serialize=True), Order("tea")) == Order("tea")


def test_a_generic_subclass_leaves_one_open() -> None:
    assert told(Answered("x")) == (None, Receipt)
    assert told(Answered[Order]("x")) == (Order, Receipt)


def test_an_argument_wins_over_brackets_and_subclass() -> None:
    assert told(InMemoryMailbox[Order, Receipt]("x", body_type=Cat)) == (Cat, Receipt)
    assert told(Orders("x", reply_type=str)) == (Order, str)


def test_told_nothing_bodies_are_plain_json() -> None:
    box: InMemoryMailbox[Any] = InMemoryMailbox("x", serialize=True)
    assert told(box) == (None, None)
    assert body_after_json(box, Order("tea")) == {"item": "tea"}


def test_any_says_as_much_as_nothing() -> None:
    box = InMemoryMailbox[Any, Any]("x")
    box._bind(Order, Receipt)
    assert told(box) == (Order, Receipt)


def test_a_loop_binds_a_mailbox_that_was_told_neither() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("x", serialize=True)
    box._bind(Order, Receipt)
    assert body_after_json(box, Order("tea")) == Order("tea")


def test_a_loop_does_not_overrule_what_was_told() -> None:
    for box in (
        InMemoryMailbox[Any, Any]("x", body_type=Order),
        InMemoryMailbox[Any, Any]("x", reply_type=Receipt),
        InMemoryMailbox[Order, Receipt]("x"),
    ):
        before = told(box)
        box._bind(Cat, Cat)
        assert told(box) == before


def test_the_first_loop_to_bind_wins() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("x")
    box._bind(Order, Receipt)
    box._bind(Cat, Cat)
    assert told(box) == (Order, Receipt)


def test_messages_sent_before_binding_are_read_by_it() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("x", serialize=True)
    box.send(Order("tea"))
    box._bind(Order, None)
    (message,) = box.receive()
    assert message.body == Order("tea")


def test_types_that_cannot_be_read_back_are_refused_when_told() -> None:
    with pytest.raises(InvalidParameterError, match=r"body_type or reply_type.*tag"):
        InMemoryMailbox("x", body_type=list[Order | Cat])
    with pytest.raises(InvalidParameterError, match="body_type or reply_type"):
        InMemoryMailbox("x", reply_type=list[Order | Cat])


def test_in_brackets_they_are_refused_at_the_latest_at_use() -> None:
    """typing of Python 3.13 swallows what is raised while it notes the brackets."""
    with pytest.raises(InvalidParameterError, match="tag"):
        InMemoryMailbox[list[Order | Cat]]("x").send([])
    with pytest.raises(InvalidParameterError, match="tag"):
        InMemoryMailbox[list[Order | Cat]]("x").send([])
