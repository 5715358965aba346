"""Sketches against the real thing: what a document sketches, ours has too."""

import dataclasses
import inspect
from typing import Any

__all__ = ["has_fields", "has_methods", "same_bases"]


def has_methods(sketch: type, ours: type) -> None:
    """Each public method of the sketch exists and takes the same arguments."""
    methods = {
        name: value
        for name, value in vars(sketch).items()
        if inspect.isfunction(value) and (not name.startswith("_") or name == "__init__")
    }
    for name, method in methods.items():
        if name == "__init__" and (
            dataclasses.is_dataclass(sketch) or getattr(sketch, "_is_protocol", False)
        ):
            continue
        taken = inspect.signature(getattr(ours, name)).parameters
        positional = [p for p in taken.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        for place, wanted in enumerate(inspect.signature(method).parameters.values()):
            by_place = wanted.kind is wanted.POSITIONAL_OR_KEYWORD and place < len(positional)
            assert by_place or wanted.name in taken, (
                f"{ours.__name__}.{name} takes no {wanted.name}"
            )


def has_fields(sketch: type, ours: type, *, but: frozenset[str] = frozenset()) -> None:
    """Each annotated field of the sketch is a field or property of ours, with its default."""
    fields: dict[str, Any] = (
        {f.name: f for f in dataclasses.fields(ours)} if dataclasses.is_dataclass(ours) else {}
    )
    for name in sketch.__annotations__:
        if name in but:
            continue
        assert name in fields or hasattr(ours, name), f"{ours.__name__} has no {name}"
        if dataclasses.is_dataclass(sketch) and name in fields:
            theirs = next(f for f in dataclasses.fields(sketch) if f.name == name)
            if theirs.default is not dataclasses.MISSING:
                assert fields[name].default == theirs.default, f"{ours.__name__}.{name}"


def same_bases(namespace: dict[str, Any], ours: Any, defined_in: str) -> None:
    """Each class that a block defines exists in ours, below the same classes."""
    for name, value in namespace.items():
        if inspect.isclass(value) and value.__module__ == defined_in:
            for base in value.__bases__:
                assert issubclass(getattr(ours, name), getattr(ours, base.__name__, base)), name
