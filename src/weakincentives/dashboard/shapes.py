"""Compares an edited body with the original: a worker expects the same fields and kinds."""

from collections.abc import Iterator
from typing import Any

from .exact_json import ExactNumber

__all__ = ["differences"]

MOST = 20


def differences(original: Any, edited: Any) -> list[str]:
    """Return what has another kind, is missing or is new in an edited body."""
    found = []
    for text in _differences(original, edited, "body"):
        found.append(text)
        if len(found) >= MOST:
            break
    return found


def _differences(original: Any, edited: Any, path: str) -> Iterator[str]:
    if original is None or edited is None:
        return  # an optional value can be anything
    was, now = _kind(original), _kind(edited)
    if was != now:
        yield f"{path} was {was} and is {now}"
    elif isinstance(original, dict):
        for key in original:
            if key not in edited:
                yield f"{path}.{key} is missing"
            else:
                yield from _differences(original[key], edited[key], f"{path}.{key}")
        yield from (f"{path}.{key} is new" for key in edited if key not in original)
    elif isinstance(original, list) and original:
        for index, item in enumerate(edited):
            yield from _differences(
                original[min(index, len(original) - 1)], item, f"{path}.{index}"
            )


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    if isinstance(value, ExactNumber | int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"
