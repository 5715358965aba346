"""Compares the class of a value with a declared type; fields and items are not looked at."""

import types
import typing
from collections.abc import Collection, Iterator, Mapping, MutableSequence, Sequence
from datetime import date, datetime
from typing import Any, NamedTuple

from typing_extensions import is_typeddict

from weakincentives.error_text import with_article
from weakincentives.serde import is_model, type_text

from .envelope import Verbatim
from .errors import SerializationError

__all__ = ["ClassCheck", "class_check", "members_of", "overlap"]

NO_VALUE: Any = object()

TEXTS = (str, bytes, bytearray, memoryview)

# Python calls these subclasses, but JSON does not read them back as the declared class.
NOT_INCLUDED: dict[type, tuple[type, ...]] = {
    int: (bool,),
    float: (bool,),
    date: (datetime,),
    Sequence: TEXTS,
    MutableSequence: TEXTS,
    Collection: (*TEXTS, Mapping),
}
ALSO_INCLUDED: dict[type, tuple[type, ...]] = {float: (int,), Sequence: (list, tuple)}


class Member(NamedTuple):
    """One member of a declared type: a class with its arguments, or one value of a `Literal`."""

    cls: type
    arguments: tuple[Any, ...] = ()
    literal: Any = NO_VALUE


class ClassCheck:
    """Refuses values whose class does not fit a declared type, before anything is stored."""

    def __init__(self, declared: Any, members: tuple[Member, ...], parameter: str) -> None:
        self._declared = declared
        self._members = members
        self._parameter = parameter
        self.classes = frozenset(_classes_of(members))
        """Classes that fit whatever the value is: callers look here first, because it is quick."""

    def require(self, value: object) -> None:
        """Raise `SerializationError` if the value does not fit."""
        if type(value) not in self.classes and not any(
            _fits(member, value) for member in self._members
        ):
            raise SerializationError(f"nothing was sent: {self._reason(type(value))}")

    def _reason(self, cls: type) -> str:
        name, declared = cls.__name__, type_text(self._declared)
        reason = f"{with_article(name)} does not fit {self._parameter}={declared}"
        for member in self._members:
            if is_model(member.cls) and issubclass(cls, member.cls):
                base = type_text(member.cls)
                return (
                    f"{reason}: it would be read back as {with_article(base)} and lose what it "
                    f"adds; declare {self._parameter}={declared} | {name}"
                )
        return reason


def class_check(declared: Any, parameter: str) -> ClassCheck | None:
    """Return the check for a declared type; None if every value fits."""
    members = None if declared is None or declared is type(None) else members_of(declared)
    return None if members is None else ClassCheck(declared, members, parameter)


def members_of(declared: Any) -> tuple[Member, ...] | None:
    """Return the members of a declared type; None if a value's class does not decide."""
    if declared is None:
        return (Member(type(None)),)
    # The type behind a NewType, and behind a ``type`` statement of Python 3.12.
    for attribute in ("__supertype__", "__value__"):
        if not isinstance(declared, type) and hasattr(declared, attribute):
            return members_of(getattr(declared, attribute))
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        return members_of(arguments[0])
    if origin is typing.Literal:
        return tuple(Member(type(value), literal=value) for value in arguments)
    if origin in (typing.Union, types.UnionType):
        parts = [members_of(argument) for argument in arguments]
        known = [part for part in parts if part is not None]
        return sum(known, ()) if len(known) == len(parts) else None
    cls = origin or declared
    if not isinstance(cls, type) or cls in (Any, object) or _is_unchecked_protocol(cls):
        return None
    return (Member(dict if is_typeddict(cls) else cls, arguments),)


def overlap(one: Any, other: Any) -> bool:
    """Return whether some value may be of both types; True if that is unknown."""
    members, others = members_of(one), members_of(other)
    if members is None or others is None:
        return True
    return any(
        _are_related(member, another)
        for member in _without_none(members)
        for another in _without_none(others)
    )


def _are_related(one: Member, other: Member) -> bool:
    if one.cls is other.cls:
        if one.literal is not NO_VALUE and other.literal is not NO_VALUE:
            return bool(one.literal == other.literal)
        pairs = zip(one.arguments, other.arguments, strict=False)
        return all(overlap(*pair) for pair in pairs)
    if {one.cls, other.cls} == {int, float} or _is_protocol(one.cls) or _is_protocol(other.cls):
        return True
    first, second = _generic(one.cls), _generic(other.cls)
    return issubclass(first, second) or issubclass(second, first)


def _without_none(members: tuple[Member, ...]) -> tuple[Member, ...]:
    return tuple(member for member in members if member.cls is not type(None)) or members


def _classes_of(members: tuple[Member, ...]) -> Iterator[type]:
    yield Verbatim  # a body that was encoded, and checked, when it was first sent
    for member in members:
        if member.literal is NO_VALUE:
            yield member.cls
            yield from ALSO_INCLUDED.get(member.cls, ())


def _fits(member: Member, value: object) -> bool:
    cls = type(value)
    if member.literal is not NO_VALUE:
        return cls is member.cls and bool(value == member.literal)
    if issubclass(cls, NOT_INCLUDED.get(member.cls, ())):
        return False
    if is_model(member.cls):
        return _is_read_back_whole(_generic(cls), _generic(member.cls))
    return isinstance(value, (member.cls, *ALSO_INCLUDED.get(member.cls, ())))


def _is_read_back_whole(cls: type, declared: type) -> bool:
    """Return whether objects of ``cls`` lose no field when they are read as ``declared``."""
    return (
        issubclass(cls, declared)
        and _fields_of(cls) <= _fields_of(declared)
        and _tag_of(cls) == _tag_of(declared)
    )


def _fields_of(cls: Any) -> set[str]:
    for attribute in ("__dataclass_fields__", "__struct_fields__", "model_fields"):
        if hasattr(cls, attribute):
            return set(getattr(cls, attribute))
    return {field.name for field in cls.__attrs_attrs__}


def _tag_of(cls: Any) -> object:
    return getattr(getattr(cls, "__struct_config__", None), "tag", None)


def _generic(cls: type) -> type:
    """Return the class without its arguments: for pydantic, ``Box[int]`` is a subclass of Box."""
    metadata = getattr(cls, "__pydantic_generic_metadata__", None) or {}
    origin: type | None = metadata.get("origin")
    return origin or cls


def _is_protocol(cls: type) -> bool:
    return bool(getattr(cls, "_is_protocol", False))


def _is_unchecked_protocol(cls: type) -> bool:
    return _is_protocol(cls) and not getattr(cls, "_is_runtime_protocol", False)
