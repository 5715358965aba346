"""The filters that choose messages and dead letters by what people write."""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from weakincentives.runtime.mailbox import InvalidParameterError, Peeked, SerializationError

from .find import FoundLetter
from .fingerprint import fingerprint_of
from .letter import age_of

__all__ = ["OF_LETTERS", "OF_MESSAGES", "letter_filter", "message_filter"]

UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
DURATION = re.compile(r"(\d+(?:\.\d+)?) *(s|min|m|h|d|w|)")
MISSING: Any = object()

CONTENTS = "body.PATH=VALUE attributes.NAME=VALUE"
OF_MESSAGES = f"id=ID older=AGE newer=AGE {CONTENTS}"
OF_LETTERS = f"error=TYPE fingerprint=ID source=QUEUE {OF_MESSAGES}"


Reader = Callable[[Any], tuple[Any, Mapping[str, str]]]
"""Returns the body and the attributes of a message or a letter, as far as they may be searched."""


def message_filter(
    texts: Iterable[str] | None, read: Reader | None = None
) -> Callable[[Peeked[Any]], bool]:
    """Return what chooses messages by the filters that were typed."""
    keys = {
        "id": lambda value: lambda message: message.id == value,
        "older": _by_age(_age_of_message, "older"),
        "newer": _by_age(_age_of_message, "newer"),
    }
    return _all_of(texts, keys, read or _read_message, OF_MESSAGES)


def letter_filter(
    texts: Iterable[str] | None, read: Reader | None = None
) -> Callable[[FoundLetter], bool]:
    """Return what chooses dead letters by the filters that were typed."""
    keys = {
        "id": lambda value: lambda found: value in _ids(found),
        "error": lambda value: lambda found: _is_type(found.letter.last_error_type, value),
        "source": lambda value: lambda found: found.letter.source_mailbox == value,
        "fingerprint": lambda value: lambda found: fingerprint_of(found.letter).id == value,
        "older": _by_age(lambda found: age_of(found.letter), "older"),
        "newer": _by_age(lambda found: age_of(found.letter), "newer"),
    }
    return _all_of(texts, keys, read or _read_letter, OF_LETTERS)


def _all_of(
    texts: Iterable[str] | None,
    keys: Mapping[str, Callable[[str], Callable[[Any], bool]]],
    read: Reader,
    known: str,
) -> Callable[[Any], bool]:
    """Return a test that all filters pass; of several ids, one is enough."""
    tests: list[Callable[[Any], bool]] = []
    any_id: list[Callable[[Any], bool]] = []
    for text in texts or ():
        key, equals, value = text.partition("=")
        root, _, path = key.partition(".")
        if equals and key == "id":
            any_id.append(keys[key](value))
        elif equals and key in keys:
            tests.append(keys[key](value))
        elif equals and path and root in ("body", "attributes"):
            tests.append(_by_contents(read, root, path, value))
        else:
            raise InvalidParameterError(f"{text!r} is not a filter; filters are {known}")
    if any_id:
        tests.insert(0, lambda one: any(test(one) for test in any_id))
    return lambda one: all(test(one) for test in tests)


def _by_age(age: Callable[[Any], float], key: str) -> Callable[[str], Callable[[Any], bool]]:
    def make(text: str) -> Callable[[Any], bool]:
        match = DURATION.fullmatch(text.strip())
        if match is None:
            raise InvalidParameterError(f"{key}= takes an age such as 90s, 15m or 7d, not {text!r}")
        limit = float(match[1]) * UNITS[match[2]]
        if key == "older":
            return lambda one: age(one) >= limit
        return lambda one: age(one) <= limit

    return make


def _by_contents(read: Reader, root: str, path: str, value: str) -> Callable[[Any], bool]:
    # An attribute's name may contain dots itself.
    steps = [path] if root == "attributes" else path.split(".")

    def test(one: Any) -> bool:
        body, attributes = read(one)
        found = attributes if root == "attributes" else body
        for step in steps:
            found = _step(found, step)
        return bool(found == value if isinstance(found, str) else found == _parsed(value))

    return test


def _read_message(message: Peeked[Any]) -> tuple[Any, Mapping[str, str]]:
    try:
        return message.body, message.attributes
    except SerializationError:
        return None, {}


def _read_letter(found: FoundLetter) -> tuple[Any, Mapping[str, str]]:
    return found.letter.body, found.letter.attributes or {}


def _age_of_message(message: Peeked[Any]) -> float:
    return (datetime.now(UTC) - message.enqueued_at).total_seconds()


def _ids(found: FoundLetter) -> tuple[str | None, ...]:
    """Return the ids by which a letter is known: its own, and those of its message."""
    return found.id, found.letter.message_id, found.letter.origin_id, found.letter.reply_id


def _is_type(full: str, asked: str) -> bool:
    return full == asked or full.endswith("." + asked)


def _step(value: Any, part: str) -> Any:
    if isinstance(value, Mapping):
        return value.get(part, MISSING)
    if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        return value[int(part)]
    return MISSING


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
