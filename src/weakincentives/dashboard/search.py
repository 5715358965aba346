"""Finds messages by what they contain, looking at a bounded number of them."""

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.envelope import Envelope
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.store import Seen

from .contents import ContentsReader, readable_envelope

__all__ = ["Found", "SearchTerms", "search"]

MOST_LOOKED = 5_000
MOST_SECONDS = 1.0
PAGE = 200
LONGEST_SEARCH = 500
TERM = re.compile(r"(?P<key>id|type|attributes\.[^:=]+|body(?:\.[^:=]+)?)[:=](?P<value>.*)", re.S)
MISSING: Any = object()


class Found(NamedTuple):
    """What one bounded search has found."""

    messages: Sequence[tuple[int, Seen]]
    """Each with its place in the queue."""
    looked: int
    """How many messages it has looked at."""
    next_start: int | None
    """Where the next search goes on; None if it has seen all."""


class Searchable(NamedTuple):
    """What of a message can be searched."""

    id: str
    type: str | None
    attributes: Mapping[str, str]
    body: Any


Test = Callable[[Searchable], bool]


class SearchTerms:
    """What was typed into the field: every term must match.

    ``id:X``, ``type:X``, ``attributes.NAME:VALUE``, ``body.path.to:VALUE``, or a word that is the
    id or occurs in the body. Values with spaces are quoted.
    """

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_SEARCH:
            raise InvalidParameterError(f"a search has at most {LONGEST_SEARCH} characters")
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise InvalidParameterError(f"the search cannot be read: {error}") from error
        self._tests = [_test(word) for word in words]

    def __bool__(self) -> bool:
        """Whether anything is searched for."""
        return bool(self._tests)

    def match(self, message: Searchable) -> bool:
        """Return whether a message is what was searched for."""
        return all(test(message) for test in self._tests)


def search(
    page: Callable[[int, int], Sequence[Seen]],
    find: str,
    reader: ContentsReader,
    mailbox: StoreMailbox[Any, Any],
    *,
    start: int,
    most: int,
) -> Found:
    """Look from ``start`` on until ``most`` were found, or long enough."""
    terms = SearchTerms(find)
    until = time.monotonic() + MOST_SECONDS
    messages: list[tuple[int, Seen]] = []
    looked = 0
    while looked < MOST_LOOKED and time.monotonic() < until:
        asked = PAGE if terms else most
        seen = page(asked, start + looked)
        for one in seen:
            looked += 1
            if not terms or terms.match(searchable(one, reader, mailbox)):
                messages.append((start + looked - 1, one))
                if len(messages) >= most:
                    return Found(messages, looked, start + looked)
        if not seen or (len(seen) < asked and not terms):
            return Found(messages, looked, None)
    return Found(messages, looked, start + looked)


def searchable(seen: Seen, reader: ContentsReader, mailbox: StoreMailbox[Any, Any]) -> Searchable:
    """Return what may be searched of a message."""
    envelope = readable_envelope(mailbox._sealer.open, seen.payload)
    if envelope is None:
        return Searchable(seen.id, None, {}, None)
    return Searchable(seen.id, envelope.type, reader.attributes(envelope), _body(envelope, reader))


def _body(envelope: Envelope, reader: ContentsReader) -> Any:
    try:
        return reader.value(envelope.body)
    except (TypeError, ValueError, RecursionError):
        return None


def _test(word: str) -> Test:
    match = TERM.fullmatch(word)
    if match is None:
        folded = word.casefold()
        return lambda one: one.id == word or folded in _text(one.body).casefold()
    key, value = match["key"], match["value"]
    if key == "id":
        return lambda one: one.id == value
    if key == "type":
        return lambda one: one.type == value
    root, _, path = key.partition(".")
    if root == "attributes":
        return lambda one: one.attributes.get(path) == value
    steps = path.split(".") if path else []
    return lambda one: _is_value(_at(one.body, steps), value)


def _at(value: Any, steps: Sequence[str]) -> Any:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step, MISSING)
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return MISSING
    return value


def _is_value(found: Any, text: str) -> bool:
    if isinstance(found, str):
        return found == text
    try:
        return bool(found == json.loads(text))
    except (ValueError, RecursionError):
        return False


def _text(body: Any) -> str:
    return json.dumps(body, ensure_ascii=False, default=str)
