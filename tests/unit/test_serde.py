import enum
import math
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.serde import (
    MAX_DEPTH,
    Carrier,
    Codec,
    DecodeError,
    EncodeError,
    SerdeError,
    TypeDeclarationError,
    check_depth,
    class_name,
)

X = TypeVar("X")


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass(frozen=True, slots=True)
class Item:
    sku: uuid.UUID
    size: Size
    price: Decimal
    tags: tuple[str, ...] = ()
    note: str | None = None


@FrozenDataclass()
class Box(Generic[X]):
    content: X
    made_at: datetime
    labels: Mapping[str, X] = field(default_factory=dict)


@dataclass
class Cat:
    name: str


@dataclass
class Dog:
    name: str


class Point(msgspec.Struct, frozen=True):
    x: int
    y: int = 0


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class User(pydantic.BaseModel):
    name: str
    born: date
    score: float | None = None


class StrictUser(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    id: uuid.UUID
    born: date


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict, total=False):
    verbose: bool


ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOON = datetime(2024, 2, 29, 12, 0, 0, 123456, tzinfo=UTC)
ITEM = Item(ID, Size.LARGE, Decimal("9.90"), ("a", "b"))


def there_and_back(declared: Any, value: object) -> Any:
    codec = Codec(declared)
    return codec.decode(codec.encode(value), class_name(value))


@pytest.mark.parametrize(
    ("declared", "value"),
    [
        (str, "tea ☕ \x00 \U0001f600"),
        (int, 2**200),
        (float, 0.1),
        (bool, True),
        (bytes, b"\x00\xff"),
        (uuid.UUID, ID),
        (datetime, NOON),
        (date, NOON.date()),
        (timedelta, timedelta(days=1, microseconds=5)),
        (Decimal, Decimal("1.10")),
        (Size, Size.SMALL),
        (tuple[int, str], (1, "a")),
        (frozenset[int], frozenset({1, 2})),
        (dict[uuid.UUID, list[int]], {ID: [1, 2]}),
        (Literal["a", "b"], "b"),
        (Item, ITEM),
        (Item | None, None),
        (Item | None, ITEM),
        (list[Item], [ITEM, ITEM]),
        (Box[Item], Box(ITEM, NOON, {"x": ITEM})),
        (Box[Box[int]], Box(Box(1, NOON), NOON)),
        (Point, Point(1, 2)),
        (Circle | Square, Square(2.0)),
        (list[Circle | Square], [Circle(1.0), Square(2.0)]),
        (User, User(name="a", born=date(2000, 1, 1))),
        (Box[User], Box(User(name="a", born=date(2000, 1, 1), score=0.5), NOON)),
        (StrictUser, StrictUser(id=ID, born=date(2000, 1, 1))),
        (Pair, Pair(1, "a")),
        (Options, {"verbose": True}),
        (Any, {"a": [1, 2.5, None, "x"]}),
        (object, [1, {"a": True}]),
    ],
)
def test_values_come_back_equal_and_of_their_type(declared: Any, value: object) -> None:
    back = there_and_back(declared, value)
    assert back == value
    assert type(back) is type(value)


def test_told_nothing_values_come_back_as_plain_json() -> None:
    assert there_and_back(Any, ITEM) == {
        "sku": str(ID),
        "size": "l",
        "price": "9.90",
        "tags": ["a", "b"],
        "note": None,
    }


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_any_json_value_comes_back(value: object) -> None:
    assert there_and_back(Any, value) == value


@given(st.binary(max_size=200), st.none() | st.text(max_size=5))
def test_any_bytes_are_read_or_refused(data: bytes, name: str | None) -> None:
    for declared in (Any, Item, Cat | Dog):
        try:
            Codec(declared).decode(data, name)
        except DecodeError:
            pass


class TestUnions:
    def test_the_class_name_decides_between_equal_shapes(self) -> None:
        assert there_and_back(Cat | Dog, Dog("a")) == Dog("a")
        assert there_and_back(Cat | Dog, Cat("a")) == Cat("a")

    @pytest.mark.parametrize("value", [Cat("a"), Dog("a"), None, "text", [1, 2]])
    def test_other_members_stay_possible(self, value: object) -> None:
        assert there_and_back(Cat | Dog | str | list[int] | None, value) == value

    def test_generic_members_are_told_by_their_origin(self) -> None:
        assert there_and_back(Box[int] | Dog, Box(1, NOON)) == Box(1, NOON)

    @pytest.mark.parametrize("name", [None, "", "Bird", "builtins.eval", "Item"])
    def test_only_declared_members_are_ever_made(self, name: str | None) -> None:
        with pytest.raises(DecodeError, match=r"expected one of Cat, Dog, the message says"):
            Codec(Cat | Dog).decode(b'{"name":"a"}', name)

    def test_members_of_one_name_are_refused(self) -> None:
        with pytest.raises(TypeDeclarationError, match="called Box"):
            Codec(Box[int] | Box[str])

    def test_a_union_inside_a_type_is_refused_with_advice(self) -> None:
        with pytest.raises(TypeDeclarationError, match="use msgspec Structs with a tag"):
            Codec(list[Cat | Dog])

    def test_a_member_that_cannot_be_read_is_refused(self) -> None:
        with pytest.raises(TypeDeclarationError):
            Codec(Box[Cat | Dog] | Item)


@dataclass
class Dangling:
    next: "NoSuchType"  # type: ignore[name-defined]  # noqa: F821


def test_an_annotation_that_names_nothing_is_explained() -> None:
    with pytest.raises(TypeDeclarationError, match=r"Dangling.*NoSuchType.*module level"):
        Codec(Dangling)


class TestRefusals:
    @pytest.mark.parametrize(
        "value",
        [object(), print, 1 + 2j, [object()], {"a": {1, object()}}, "\ud800", {(1, 2): 3}],
    )
    def test_what_is_no_json(self, value: object) -> None:
        with pytest.raises(EncodeError):
            Codec().encode(value)

    @pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
    def test_numbers_that_json_has_not(self, number: float) -> None:
        for value in (
            number,
            [1, {"a": number}],
            (number,),
            {"a": None, "b": {"c": [number]}},
            Circle(number),
            User(name="a", born=date(2000, 1, 1), score=number),
            [User(name="a", born=date(2000, 1, 1), score=number)],
        ):
            with pytest.raises(EncodeError, match="NaN"):
                Codec().encode(value)

    @pytest.mark.parametrize(
        "value",
        [
            None,
            [None],
            "null",
            {"null": 1},
            Item(ID, Size.SMALL, Decimal(1), note=None),
            msgspec.Raw(b"[null]"),
        ],
    )
    def test_null_itself_is_fine(self, value: object) -> None:
        assert b"null" in Codec().encode(value)

    def test_a_model_with_null_and_types_of_its_own_is_fine(self) -> None:
        class Login(pydantic.BaseModel):
            key: pydantic.SecretStr
            hint: str | None = None

        data = Codec().encode(Login(key=pydantic.SecretStr("x")))
        assert msgspec.json.decode(data) == {"key": "**********", "hint": None}

    def test_a_value_that_contains_itself(self) -> None:
        loop: list[object] = []
        loop.append(loop)
        with pytest.raises(EncodeError):
            Codec().encode(loop)

    @pytest.mark.parametrize(
        ("declared", "data"),
        [
            (int, b'"1"'),
            (int, b"1.5"),
            (str, b"null"),
            (Item, b"{}"),
            (Item, b"[]"),
            (Size, b'"xl"'),
            (datetime, b'"yesterday"'),
            (User, b'{"name": "a", "born": "never"}'),
            (StrictUser, b'{"id": 7, "born": "2000-01-01"}'),
            (Any, b""),
            (Any, b"{"),
            (Any, b"[1] 2"),
            (Any, b'"\xff"'),
            (Any, b"NaN"),
        ],
    )
    def test_what_is_not_of_the_declared_type(self, declared: Any, data: bytes) -> None:
        with pytest.raises(DecodeError):
            Codec(declared).decode(data, None)

    def test_the_message_says_what_and_where(self) -> None:
        with pytest.raises(DecodeError, match=r"cannot decode Point: Expected `int`.*\$\.x"):
            Codec(Point).decode(b'{"x": "one"}', None)

    def test_all_are_serde_errors(self) -> None:
        for error in (EncodeError, DecodeError, TypeDeclarationError):
            assert issubclass(error, SerdeError)


@dataclass
class Letter(Carrier):
    body: Any


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


class TestDepth:
    def test_the_limit_itself_is_fine(self) -> None:
        data = b"[" * MAX_DEPTH + b"]" * MAX_DEPTH
        assert Codec().encode(Codec().decode(data, None)) == data

    @pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
    def test_beyond_it_nothing_is_written(self, depth: int) -> None:
        with pytest.raises(EncodeError):
            Codec().encode(nested(depth))

    @pytest.mark.parametrize("depth", [MAX_DEPTH + 2, 100_000])
    def test_beyond_what_a_carrier_may_have_nothing_is_read(self, depth: int) -> None:
        with pytest.raises(DecodeError):
            Codec().decode(b'{"a":' * depth + b"1" + b"}" * depth, None)

    def test_a_carrier_is_one_level_deeper_than_what_it_carries(self) -> None:
        letter = Letter(nested(MAX_DEPTH))
        assert there_and_back(Letter, letter) == letter
        assert Codec().decode(Codec().encode(letter), None) == {"body": letter.body}
        with pytest.raises(EncodeError):
            Codec().encode(Letter(nested(MAX_DEPTH + 1)))

    def test_width_is_no_depth(self) -> None:
        value = [[{}, []]] * 1000
        assert there_and_back(Any, value) == value

    def test_brackets_in_strings_do_not_count(self) -> None:
        for text in ("[" * 1000, '"[' * 500, "\\[" * 500, '\\"[' * 400):
            check_depth(msgspec.json.encode([text]), DecodeError)

    def test_brackets_after_strings_do_count(self) -> None:
        with pytest.raises(DecodeError, match=f"deeper than {MAX_DEPTH}"):
            check_depth(b'["a\\\\",' * (MAX_DEPTH + 1), DecodeError)

    @pytest.mark.parametrize("filler", [b'\\"', b"\\", b'"', b'"\\\n'])
    def test_hostile_quotes_cost_no_more_than_their_length(self, filler: bytes) -> None:
        """Unclosed strings were scanned from each of their quotes: minutes for a megabyte."""
        data = b'"' + filler * 150_000 + b"[" * (MAX_DEPTH + 1)
        started = time.process_time()
        with pytest.raises(DecodeError):
            Codec().decode(data, None)
        assert time.process_time() - started < 3


def test_class_names_are_for_models_only() -> None:
    named = [ITEM, Point(1), User(name="a", born=date(2000, 1, 1)), Box[int](1, NOON)]
    assert [class_name(value) for value in named] == ["Item", "Point", "User", "Box"]
    assert [class_name(value) for value in (None, 1, "a", {}, Size.SMALL, Item)] == [None] * 6


def test_a_type_that_json_cannot_carry_is_a_decode_error() -> None:
    class Opaque:
        pass

    with pytest.raises(DecodeError, match="Opaque"):
        Codec(Opaque).decode(b"1", None)


def test_advice_on_unions_is_given_for_unions_only() -> None:
    class Mixed(enum.Enum):
        WORD = "word"
        NUMBER = 1

    with pytest.raises(TypeDeclarationError, match="Enums must contain") as caught:
        Codec(Mixed)
    assert "tag" not in str(caught.value)
