import copy
import dataclasses
import pickle
from dataclasses import FrozenInstanceError, field
from typing import Generic, TypeVar

import pytest

from weakincentives.dataclasses import FrozenDataclass

X = TypeVar("X")


@FrozenDataclass()
class Result(Generic[X]):
    value: X
    tags: tuple[str, ...] = field(default_factory=tuple)


@FrozenDataclass()
class Detailed(Result[X], Generic[X]):
    detail: str = ""


@FrozenDataclass()
class Checked:
    count: int

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("negative")


def test_a_parametrised_generic_can_be_called() -> None:
    """CPython's own frozen, slotted generics raise TypeError here up to 3.12."""
    assert Result[int](7, tags=("a",)) == Result(7, ("a",))
    assert Detailed[str]("x", detail="y") == Detailed("x", (), "y")


def test_instances_compare_hash_and_print_by_their_fields() -> None:
    assert Result(1) == Result(1)
    assert Result(1) != Result(2)
    assert len({Result(1), Result(1), Result(2)}) == 2
    assert repr(Result(1)) == "Result(value=1, tags=())"


@pytest.mark.parametrize("name", ["value", "unknown", "__orig_class__"])
def test_nothing_can_be_set_or_deleted(name: str) -> None:
    for result in (Result(1), Detailed(1), Result[int](1)):
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(result, name, 2)
        with pytest.raises(FrozenInstanceError, match=name):
            delattr(result, name)
        assert result.value == 1


def test_instances_have_slots_and_no_dict() -> None:
    assert not hasattr(Result(1), "__dict__")


def test_post_init_runs() -> None:
    with pytest.raises(ValueError, match="negative"):
        Checked(-1)


def test_instances_are_copied_pickled_and_replaced() -> None:
    result = Detailed(1, ("a",), "b")
    assert copy.deepcopy(result) == result
    assert pickle.loads(pickle.dumps(result)) == result
    assert dataclasses.replace(result, detail="c") == Detailed(1, ("a",), "c")
    assert dataclasses.asdict(result) == {"value": 1, "tags": ("a",), "detail": "b"}
