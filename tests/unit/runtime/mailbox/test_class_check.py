"""What fits a declared type: a value that fits can be read back, one that does not is refused."""

import collections
import enum
import typing
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypeVar
from uuid import UUID

import msgspec
import pydantic
import pytest

from weakincentives.runtime import DeadLetter, InMemoryMailbox, MainLoopRequest
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.runtime.mailbox.class_check import class_check, overlap
from weakincentives.runtime.mailbox.envelope import Verbatim
from weakincentives.serde import Codec, SerdeError

T = TypeVar("T")
Amount = NewType("Amount", int)


@dataclass
class Order:
    item: str


@dataclass
class Rush(Order):
    hours: int = 1


class Renamed(Order):
    """Adds nothing."""


@dataclass
class Payment:
    amount: int


@dataclass
class Page(Generic[T]):
    items: list[T]


class Point(msgspec.Struct):
    x: int


class Point3(Point):
    z: int = 0


class Shape(msgspec.Struct, tag=True):
    a: int


class Square(Shape):
    """Has another tag, and nothing else."""


class Model(pydantic.BaseModel):
    n: int


class Larger(Model):
    m: int = 0


class Boxed(pydantic.BaseModel, Generic[T]):
    value: T


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    LOW = 1


class Pair(NamedTuple):
    a: int


class Row(typing.TypedDict):
    a: int


class Named(typing.Protocol):
    name: str


FITS: list[tuple[Any, Any]] = [
    (Order, Order("tea")),
    (Order, Renamed("tea")),
    (Order | Rush, Rush("tea", 2)),
    (Order | Payment | None, None),
    (Order | None, Order("tea")),
    (Page[Order], Page([Order("tea")])),
    (Page, Page([1])),
    (Point, Point(1)),
    (Shape | None, Shape(1)),
    (Model, Model(n=1)),
    (Boxed[int], Boxed[int](value=1)),
    (Boxed[int], Boxed(value=1)),
    (Boxed, Boxed[int](value=1)),
    (list[Order], []),
    (typing.List, [1]),  # noqa: UP006 - users write it
    (dict[str, int], collections.OrderedDict(a=1)),
    (Mapping[str, int], {"a": 1}),
    (Sequence[int], (1, 2)),
    (Collection[int], [1]),
    (tuple[int, ...], Pair(1)),
    (Pair, Pair(1)),
    (Row, {"a": 1}),
    (set[int], {1}),
    (int, 1),
    (int, Level.LOW),
    (float, 1),
    (float, 1.5),
    (bool, True),
    (str, Colour.RED),
    (Colour, Colour.RED),
    (bytes, b"a"),
    (UUID, UUID(int=1)),
    (date, date(2024, 1, 1)),
    (datetime, datetime(2024, 1, 1)),
    (Decimal, Decimal("1.5")),
    (Literal["a", 1], 1),
    (Literal["a"] | None, None),
    (Annotated[int, "pieces"], 1),
    (Amount, 1),
    (T, 1),
    (Any, 1),
    (object, 1),
    (Order | Any, 1),
]

MISFITS: list[tuple[Any, Any]] = [
    (Order, {"item": "tea"}),
    (Order, Payment(1)),
    (Order, None),
    (Order, Order),
    (Order, Rush("tea")),
    (Order | Payment, Rush("tea")),
    (Page[Order], [Order("tea")]),
    (Point, Point3(1)),
    (Shape, Square(1)),
    (Model, Larger(n=1)),
    (Boxed[int], Model(n=1)),
    (list[Order], (Order("tea"),)),
    (list[Order], Order("tea")),
    (dict[str, int], [("a", 1)]),
    (Sequence[str], "abc"),
    (Collection[int], {"a": 1}),
    (tuple[int, ...], [1]),
    (Pair, (1,)),
    (Row, [1]),
    (set[int], frozenset({1})),
    (int, True),
    (int, 1.0),
    (int, "1"),
    (float, True),
    (float, "1.5"),
    (bool, 1),
    (str, b"a"),
    (str, None),
    (Colour, "red"),
    (bytes, "a"),
    (UUID, "00000000-0000-0000-0000-000000000001"),
    (date, datetime(2024, 1, 1)),
    (Decimal, 1.5),
    (Literal["a", 1], "b"),
    (Literal[1], True),
    (Annotated[int, "pieces"], "1"),
    (Amount, "1"),
]


def fits(declared: Any, value: Any) -> bool:
    check = class_check(declared, "body_type")
    if check is None:
        return True
    try:
        check.require(value)
    except SerializationError:
        return False
    return True


def builtins(value: Any) -> Any:
    return msgspec.json.decode(Codec().encode(value))


def shown(case: Any) -> str:
    return str(case)[:40]


@pytest.mark.parametrize(("declared", "value"), FITS, ids=shown)
def test_what_fits_can_be_read_back(declared: Any, value: Any) -> None:
    assert fits(declared, value)
    codec = Codec(declared)
    name = type(value).__name__ if isinstance(value, Order | Payment) else None
    back = codec.decode(codec.encode(value), name)
    # As builtins: a value of a subclass comes back as the declared class.
    assert builtins(back) == builtins(value)


@pytest.mark.parametrize(("declared", "value"), MISFITS, ids=shown)
def test_what_does_not_fit_is_refused(declared: Any, value: Any) -> None:
    assert not fits(declared, value)


@pytest.mark.parametrize(
    ("declared", "value"),
    [(Order, Rush("tea")), (Point, Point3(1)), (Model, Larger(n=1))],
    ids=["dataclass", "Struct", "pydantic"],
)
def test_a_subclass_that_would_lose_a_field_is_refused_with_advice(
    declared: Any, value: Any
) -> None:
    check = class_check(declared, "body_type")
    assert check is not None
    advice = rf"declare body_type={declared.__name__} \| {type(value).__name__}"
    with pytest.raises(SerializationError, match=advice):
        check.require(value)
    codec = Codec(declared)
    assert codec.encode(codec.decode(codec.encode(value), None)) != codec.encode(value)
    assert fits(declared | type(value), value)


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (int, True),
        (float, True),
        (date, datetime(2024, 1, 1)),
        (Sequence[str], "abc"),
        (Shape, Square(1)),
    ],
    ids=shown,
)
def test_not_all_that_python_calls_a_subclass_can_be_read_back(declared: Any, value: Any) -> None:
    assert (declared, value) in MISFITS
    codec = Codec(declared)
    with pytest.raises(SerdeError):
        codec.decode(codec.encode(value), None)


def test_a_protocol_is_not_checked_but_a_runtime_one_is() -> None:
    @typing.runtime_checkable
    class HasItem(typing.Protocol):
        item: str

    assert fits(Named, 5)
    assert fits(HasItem, Order("tea"))
    assert not fits(HasItem, Payment(1))


def test_an_encoded_body_was_checked_when_it_was_first_sent() -> None:
    assert fits(Order, Verbatim(msgspec.Raw(b"1"), None))


def test_our_own_generics_are_compared_by_their_class() -> None:
    assert fits(MainLoopRequest[Order], MainLoopRequest(request="anything"))
    assert not fits(MainLoopRequest[Order], Order("tea"))
    assert not fits(DeadLetter[Order], Order("tea"))


def test_a_hostile_value_is_refused_without_being_asked() -> None:
    class Hostile:
        def __eq__(self, other: object) -> bool:
            raise RuntimeError("do not compare me")

        def __repr__(self) -> str:
            raise RuntimeError("do not show me")

        __hash__ = None  # type: ignore[assignment]

    for declared in (Order, int, list[int], Literal["a"], Order | None):
        assert not fits(declared, Hostile())


def test_nothing_is_checked_where_nothing_is_declared() -> None:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("x")
    assert box._types.body_check is None
    assert box._types.reply_check is None
    assert InMemoryMailbox[Any, Any]("x", body_type=Any)._types.body_check is None


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (Order, Order, True),
        (Order, Rush, True),
        (Order, Payment, False),
        (Order, dict, False),
        (Order | None, Payment | None, False),
        (Order | Payment, Payment, True),
        (Order | None, type(None), False),
        (list[Order], list[Payment], False),
        (list[Order], list[Rush], True),
        (list[Order], list, True),
        (Page[Order], Page[Any], True),
        (tuple[int, ...], tuple[int, str], True),
        (int, float, True),
        (int, str, False),
        (Row, dict, True),
        (Mapping[str, int], dict, True),
        (Named, Order, True),
        (Any, Order, True),
        (T, Order, True),
        (Literal["a"], str, True),
        (Literal["a"], Literal["b"], False),
        (Boxed[int], Boxed, True),
    ],
    ids=shown,
)
def test_types_overlap_if_a_value_may_be_of_both(one: Any, other: Any, expected: bool) -> None:
    assert overlap(one, other) is expected
    assert overlap(other, one) is expected
