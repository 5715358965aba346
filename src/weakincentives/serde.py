"""Values to JSON and back: no pickle, no class ever looked up by a name from the wire."""

import math
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from weakincentives.errors import WinkError

__all__ = [
    "MAX_DEPTH",
    "Codec",
    "DecodeError",
    "EncodeError",
    "SerdeError",
    "TypeDeclarationError",
    "check_depth",
    "class_name",
]

MAX_DEPTH = 200

# A string may end with the data: tried again from each of its quotes, a hostile one takes minutes.
_BRACKETS_OUTSIDE_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([\[{])|[\]}]')


class SerdeError(WinkError):
    """A value could not be turned into JSON or back."""


class EncodeError(SerdeError):
    """A value cannot be written as JSON."""


class DecodeError(SerdeError):
    """A payload is not JSON of the declared type."""


class TypeDeclarationError(SerdeError):
    """A declared type cannot be read back from JSON."""


class Codec:
    """Writes any JSON-able value and reads back values of one declared type.

    Dataclasses, msgspec Structs, pydantic models, enums, UUIDs, datetimes, tuples and generics of
    them come back equal. Declared ``Any``, values come back as plain JSON values.
    """

    def __init__(self, declared: Any = Any) -> None:
        self.declared = declared
        self._encoder = msgspec.json.Encoder(enc_hook=_to_json)
        self._decoder, self._by_name = _decoders(declared)

    def encode(self, value: object) -> bytes:
        """Return ``value`` as JSON, or raise `EncodeError` saying what in it is not JSON."""
        try:
            data = self._encoder.encode(value)
            # NaN would silently become null; only a payload with a null in it can hide one.
            if b"null" in data and any(_not_finite(msgspec.to_builtins(value, enc_hook=_plain))):
                raise EncodeError("NaN and infinity are not JSON numbers")
        except (TypeError, ValueError, RecursionError, OverflowError, NotImplementedError) as error:
            raise EncodeError(f"cannot encode {type(value).__name__}: {error}") from error
        check_depth(data, EncodeError)
        return data

    def decode(self, data: bytes | bytearray | memoryview | msgspec.Raw, name: str | None) -> Any:
        """Read a value; ``name`` is the class name that came with it, for unions of classes."""
        decoder = self._decoder
        if self._by_name:
            decoder = self._by_name.get(name or "", self._decoder)
            if decoder is None:
                expected = ", ".join(sorted(self._by_name))
                raise DecodeError(f"expected one of {expected}, the message says {name or '-'}")
        assert decoder is not None
        raw = bytes(data)
        check_depth(raw, DecodeError)
        try:
            return decoder.decode(raw)
        except (
            msgspec.MsgspecError,
            ValueError,
            TypeError,
            RecursionError,
            NotImplementedError,
        ) as error:
            raise DecodeError(f"cannot decode {_describe(self.declared)}: {error}") from error


_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})


def class_name(value: object) -> str | None:
    """Return the name that tells ``value`` from other members of a union; None for plain JSON."""
    cls = type(value)
    return cls.__name__ if cls not in _PLAIN and _is_model(cls) else None


def check_depth(data: bytes, error: type[SerdeError]) -> None:
    """Refuse JSON nested deeper than `MAX_DEPTH`: it would exhaust the stack of some reader."""
    # Each level takes two brackets, so short texts cannot be too deep.
    if len(data) <= 2 * MAX_DEPTH or data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for token in _BRACKETS_OUTSIDE_STRINGS.finditer(data):
        first = token[0][:1]
        if token[1]:
            depth += 1
            if depth > MAX_DEPTH:
                raise error(f"nested deeper than {MAX_DEPTH} levels")
        elif first != b'"':
            depth -= 1


def _decoders(
    declared: Any,
) -> tuple[msgspec.json.Decoder[Any] | None, dict[str, msgspec.json.Decoder[Any]]]:
    """Return the decoder for ``declared``, and one for each class where only a name can tell."""
    if declared is object:
        declared = Any
    try:
        return _decoder(declared), {}
    except TypeError as error:
        members = _union_members(declared)
        models = [member for member in members if _is_model(_origin(member))]
        if len(models) < 2:
            raise _undeclarable(declared, error) from error
        problem = error
    by_name: dict[str, msgspec.json.Decoder[Any]] = {}
    for member in models:
        name = _origin(member).__name__
        if name in by_name:
            raise TypeDeclarationError(
                f"two members of {_describe(declared)} are called {name}, so a message cannot say "
                f"which it is; give them different names or use tagged msgspec Structs"
            ) from problem
        by_name[name] = _checked_decoder(member)
    rest = [member for member in members if member not in models]
    return (_checked_decoder(typing.Union[tuple(rest)]) if rest else None), by_name  # noqa: UP007


def _checked_decoder(declared: Any) -> msgspec.json.Decoder[Any]:
    try:
        return _decoder(declared)
    except TypeError as error:
        raise _undeclarable(declared, error) from error


def _decoder(declared: Any) -> msgspec.json.Decoder[Any]:
    try:
        return msgspec.json.Decoder(declared, dec_hook=_from_json)
    except NameError as error:
        raise TypeDeclarationError(
            f"cannot resolve an annotation of {_describe(declared)}: {error}; "
            f"define the types it names at module level"
        ) from error


def _undeclarable(declared: Any, error: Exception) -> TypeDeclarationError:
    return TypeDeclarationError(
        f"{_describe(declared)} cannot be read back from JSON: {error}; "
        f"for a union inside another type use msgspec Structs with a tag"
    )


def _union_members(declared: Any) -> tuple[Any, ...]:
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return typing.get_args(declared)
    return ()


def _origin(declared: Any) -> Any:
    return typing.get_origin(declared) or declared


def _is_model(cls: Any) -> bool:
    return isinstance(cls, type) and (
        hasattr(cls, "__dataclass_fields__")
        or hasattr(cls, "__struct_fields__")
        or hasattr(cls, "__attrs_attrs__")
        or hasattr(cls, "model_validate_json")
    )


def _describe(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) else str(declared)


def _to_json(value: Any) -> Any:
    if hasattr(value, "model_dump_json"):
        return msgspec.Raw(value.model_dump_json().encode())
    raise NotImplementedError(f"objects of type {type(value).__name__} are not JSON")


def _plain(value: Any) -> float | None:
    """Return NaN for a model with a NaN in it, which its own JSON would show as null."""
    dump = getattr(value, "model_dump", dict)  # what is no model, such as Raw, is JSON already
    return math.nan if any(_not_finite(dump())) else None


def _from_json(declared: type, value: Any) -> Any:
    validate = getattr(declared, "model_validate_json", None)
    if validate is None:
        raise NotImplementedError(f"values of type {_describe(declared)} cannot be read from JSON")
    # Through JSON again, so that a strict model sees the types that JSON has.
    return validate(msgspec.json.encode(value))


def _not_finite(value: Any) -> Iterator[bool]:
    """Yield True for each NaN or infinity in a plain value."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield True
    elif isinstance(value, dict):
        for item in value.values():
            yield from _not_finite(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _not_finite(item)
