"""Encodes values as JSON and decodes them; never unpickles, never imports a class by name."""

import math
import re
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec

from .error_text import described, one_line
from .errors import WinkError

__all__ = [
    "MAX_DEPTH",
    "Carrier",
    "Codec",
    "DecodeError",
    "EncodeError",
    "SerdeError",
    "TypeDeclarationError",
    "check_depth",
    "class_name",
    "is_model",
    "type_text",
]

MAX_DEPTH = 200
SHALLOW = 2 * MAX_DEPTH
"""Each level needs two brackets, so JSON of at most this many bytes cannot be too deep."""

# The closing quote is optional and the repetition possessive: otherwise an unterminated string
# would be retried from each of its quotes, which takes minutes on hostile input.
_BRACKETS_OUTSIDE_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"?|([\[{])|[\]}]')


class SerdeError(WinkError):
    """A value could not be encoded as JSON, or decoded from it."""


class EncodeError(SerdeError):
    """A value cannot be encoded as JSON."""


class DecodeError(SerdeError):
    """A payload is not JSON of the declared type."""


class TypeDeclarationError(SerdeError):
    """A declared type cannot be decoded from JSON."""


class Carrier:
    """A value that wraps another message's body, as a dead letter does.

    The body was within the limits when it was first sent. The wrapper may be larger and one level
    deeper than other values, so that any body can be wrapped.
    """

    __slots__ = ()


class Codec:
    """Encodes any value that JSON can express, and decodes values of one declared type.

    Dataclasses, msgspec Structs, pydantic models, enums, UUIDs, datetimes, tuples and generics of
    them come back equal. With ``Any``, values come back as plain JSON values.
    """

    def __init__(self, declared: Any = Any) -> None:
        self.declared = declared
        self._encoder = msgspec.json.Encoder(enc_hook=_to_json)
        self._decoder, self._by_name = _decoders(declared)

    def encode(self, value: object) -> bytes:
        """Return ``value`` as JSON, or raise `EncodeError` naming the part that is not JSON."""
        try:
            data = self._encoder.encode(value)
            # msgspec silently writes NaN as null, so only a payload with a null can hide one.
            if b"null" in data and any(_not_finite(msgspec.to_builtins(value, enc_hook=_plain))):
                raise EncodeError("NaN and infinity are not JSON numbers")
        except (SerdeError, MemoryError):
            raise
        except Exception as error:
            # Any exception: a model's own code runs here, and can raise anything.
            raise EncodeError(f"cannot encode {type(value).__name__}: {_said(error)}") from error
        if len(data) > SHALLOW:
            check_depth(data, EncodeError, MAX_DEPTH + isinstance(value, Carrier))
        return data

    def decode(self, data: bytes | bytearray | memoryview | msgspec.Raw, name: str | None) -> Any:
        """Decode a value; ``name`` is the class name in its envelope, needed for unions."""
        decoder = self._decoder
        if self._by_name:
            decoder = self._by_name.get(name or "", self._decoder)
            if decoder is None:
                expected = ", ".join(sorted(self._by_name))
                raise DecodeError(f"expected one of {expected}, the message says {name or '-'}")
        assert decoder is not None
        raw = bytes(data)
        if len(raw) > SHALLOW:
            # One level more than `encode` allows: the declared type may not say that this is
            # a carrier.
            check_depth(raw, DecodeError, MAX_DEPTH + 1)
        try:
            return decoder.decode(raw)
        except MemoryError:
            raise
        except Exception as error:
            # Any exception: __post_init__ and validators run here, and can raise anything.
            raise DecodeError(
                f"cannot decode {type_text(self.declared)}: {_said(error)}"
            ) from error


_PLAIN = frozenset({dict, list, str, int, float, bool, type(None)})


def _said(error: Exception) -> str:
    """Return an error's message, with its type in front unless the error is about values."""
    about_values = isinstance(error, msgspec.MsgspecError | ValueError | TypeError)
    return described(error) if about_values else one_line(error)


def class_name(value: object) -> str | None:
    """Return the class name that identifies ``value`` in a union; None for plain JSON values."""
    cls = type(value)
    return cls.__name__ if cls not in _PLAIN and is_model(cls) else None


def check_depth(data: bytes, error: type[SerdeError], limit: int = MAX_DEPTH) -> None:
    """Raise ``error`` if JSON is nested deeper than ``limit``, which could overflow a stack."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return
    depth = 0
    for token in _BRACKETS_OUTSIDE_STRINGS.finditer(data):
        first = token[0][:1]
        if token[1]:
            depth += 1
            if depth > limit:
                raise error(f"nested deeper than {limit} levels")
        elif first != b'"':
            depth -= 1


def _decoders(
    declared: Any,
) -> tuple[msgspec.json.Decoder[Any] | None, dict[str, msgspec.json.Decoder[Any]]]:
    """Return the decoder for ``declared``, and for a union of classes one decoder per class."""
    if declared is object:
        declared = Any
    try:
        return _decoder(declared), {}
    except TypeError as error:
        members = _union_members(declared)
        models = [member for member in members if is_model(_origin(member))]
        if len(models) < 2:
            raise _undeclarable(declared, error) from error
        problem = error
    by_name: dict[str, msgspec.json.Decoder[Any]] = {}
    for member in models:
        name = _origin(member).__name__
        if name in by_name:
            raise TypeDeclarationError(
                f"two members of {type_text(declared)} are called {name}, so a message cannot say "
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
            f"cannot resolve an annotation of {type_text(declared)}: {error}; "
            f"define the types it names at module level"
        ) from error


def _undeclarable(declared: Any, error: Exception) -> TypeDeclarationError:
    advice = "; use msgspec Structs with a tag" if "union" in str(error) else ""
    return TypeDeclarationError(
        f"{type_text(declared)} cannot be read back from JSON: {error}{advice}"
    )


def _union_members(declared: Any) -> tuple[Any, ...]:
    if typing.get_origin(declared) in (typing.Union, types.UnionType):
        return typing.get_args(declared)
    return ()


def _origin(declared: Any) -> Any:
    return typing.get_origin(declared) or declared


def is_model(cls: Any) -> bool:
    """Return whether this is a dataclass, a Struct, or a class of attrs or pydantic."""
    return isinstance(cls, type) and (
        hasattr(cls, "__dataclass_fields__")
        or hasattr(cls, "__struct_fields__")
        or hasattr(cls, "__attrs_attrs__")
        or hasattr(cls, "model_validate_json")
    )


def type_text(declared: Any) -> str:
    """Return a declared type as an error message shows it."""
    return declared.__name__ if isinstance(declared, type) else str(declared)


def _to_json(value: Any) -> Any:
    if hasattr(value, "model_dump_json"):
        return msgspec.Raw(value.model_dump_json().encode())
    raise NotImplementedError(f"objects of type {type(value).__name__} are not JSON")


def _plain(value: Any) -> float | None:
    """Return NaN if a model contains NaN, which its own JSON would show as null; else None."""
    dump = getattr(value, "model_dump", dict)  # a value that is not a model, such as Raw, is JSON
    return math.nan if any(_not_finite(dump())) else None


def _from_json(declared: type, value: Any) -> Any:
    validate = getattr(declared, "model_validate_json", None)
    if validate is None:
        raise NotImplementedError(f"values of type {type_text(declared)} cannot be read from JSON")
    # Encoded again, because a strict pydantic model accepts other types from JSON than from Python.
    return validate(msgspec.json.encode(value))


def _not_finite(value: Any) -> Iterator[bool]:
    """Yield True for each NaN or infinity inside a plain value."""
    if isinstance(value, float):
        if not math.isfinite(value):
            yield True
    elif isinstance(value, dict):
        for item in value.values():
            yield from _not_finite(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from _not_finite(item)
