"""JSON for people to read: indented, with every number and character as it was sent."""

import json
from typing import Any

from weakincentives.error_text import printable

__all__ = ["ExactNumber", "read_exactly", "written_exactly"]


class ExactNumber(str):
    """A number as it stands in the text: as a float it might lose digits."""

    __slots__ = ()


def read_exactly(text: str | bytes) -> Any:
    """Read JSON and keep its numbers as they are; raise ValueError or RecursionError."""
    return json.loads(text, parse_float=ExactNumber, parse_int=ExactNumber)


def written_exactly(value: Any, indent: str = "") -> str:
    """Write what `read_exactly` has read; characters that could deceive are escaped."""
    deeper = indent + "  "
    if isinstance(value, ExactNumber):
        return str(value)
    if isinstance(value, dict) and value:
        entries = (f"{_text(k)}: {written_exactly(v, deeper)}" for k, v in value.items())
        return "{\n" + ",\n".join(deeper + entry for entry in entries) + f"\n{indent}}}"
    if isinstance(value, list) and value:
        items = (written_exactly(item, deeper) for item in value)
        return "[\n" + ",\n".join(deeper + item for item in items) + f"\n{indent}]"
    return _text(value)


def _text(value: Any) -> str:
    return printable(json.dumps(value, ensure_ascii=False))
