"""Finds messages by what they contain, looking at a bounded number of them."""

import json
import re
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from weakincentives.runtime.dead_letters.filters import letter_filter, message_filter
from weakincentives.runtime.dead_letters.find import FoundLetter
from weakincentives.runtime.mailbox import InvalidParameterError, Peeked
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.driver import run
from weakincentives.runtime.mailbox.seam.store import Seen

from .contents import ContentsReader, readable_envelope

__all__ = ["Bounds", "Found", "letter_terms", "message_terms", "search"]

LONGEST_SEARCH = 500
PAGE = 200
TERM = re.compile(r"([a-z]+(?:\.[^:=]+)?)[:=](.*)", re.DOTALL)

F = TypeVar("F")
Readable = Callable[[Any], tuple[Any, Mapping[str, str]]]


class Bounds(NamedTuple):
    """How far one search may go."""

    found: int
    looked: int = 5_000
    seconds: float = 1.0


class Found(NamedTuple, Generic[F]):
    """What one bounded search has found."""

    messages: Sequence[tuple[int, F]]
    """Each with its place in the queue."""
    looked: int
    """How many messages it has looked at."""
    next_start: int | None
    """Where the next search goes on; None if it has seen all."""


def search(
    mailbox: StoreMailbox[Any, Any],
    wanted: Callable[[Seen], F | None],
    *,
    start: int,
    bounds: Bounds,
) -> Found[F]:
    """Look at messages from ``start`` on, and keep what ``wanted`` returns for them."""
    until = time.monotonic() + bounds.seconds
    found: list[tuple[int, F]] = []
    looked = 0
    while looked < bounds.looked and time.monotonic() < until:
        page = _page(mailbox, min(PAGE, bounds.looked - looked), start + looked)
        for seen in page:
            looked += 1
            one = wanted(seen)
            if one is not None:
                found.append((start + looked - 1, one))
                if len(found) >= bounds.found:
                    return Found(found, looked, start + looked)
        if not page:
            return Found(found, looked, None)
    return Found(found, looked, start + looked)


def _page(mailbox: StoreMailbox[Any, Any], limit: int, offset: int) -> Sequence[Seen]:
    return run(lambda: mailbox.store.peek(limit, offset))


def message_terms(
    text: str, reader: ContentsReader, mailbox: StoreMailbox[Any, Any]
) -> Callable[[Seen], Seen | None]:
    """Return what finds the messages that match what was typed."""

    def read(message: Peeked[Any]) -> tuple[Any, Mapping[str, str]]:
        envelope = readable_envelope(mailbox._sealer.open, message.payload)
        if envelope is None:
            return None, {}
        return reader.value(envelope.body), reader.attributes(envelope.attributes)

    words, filters = _parsed(text)
    is_chosen = message_filter(filters, read)
    has_words = _word_test(words, read)

    def wanted(seen: Seen) -> Seen | None:
        message = Peeked(mailbox, seen)
        return seen if is_chosen(message) and has_words(message, [seen.id]) else None

    return wanted


def letter_terms(text: str, reader: ContentsReader) -> Callable[[FoundLetter], bool]:
    """Return what tells whether a dead letter matches what was typed."""

    def read(found: FoundLetter) -> tuple[Any, Mapping[str, str]]:
        letter = found.letter
        return reader.value(letter.body), reader.attributes(letter.attributes)

    words, filters = _parsed(text)
    is_chosen = letter_filter(filters, read)
    has_words = _word_test(words, read)

    def wanted(found: FoundLetter) -> bool:
        letter = found.letter
        texts = [found.id, letter.message_id, letter.last_error, letter.last_error_type]
        return is_chosen(found) and has_words(found, texts)

    return wanted


def _parsed(text: str) -> tuple[list[str], list[str]]:
    """Return the single words and the filters in what was typed."""
    if len(text) > LONGEST_SEARCH:
        raise InvalidParameterError(f"a search has at most {LONGEST_SEARCH} characters")
    try:
        terms = shlex.split(text)
    except ValueError as error:
        raise InvalidParameterError(f"the search cannot be read: {error}") from error
    words, filters = [], []
    for term in terms:
        match = TERM.fullmatch(term)
        if match is None:
            words.append(term.casefold())
        else:
            filters.append(f"{match[1]}={match[2]}")
    return words, filters


def _word_test(words: Sequence[str], read: Readable) -> Callable[[Any, Sequence[str]], bool]:
    """Return what tells whether every word is in one of the texts, or in the body."""

    def test(one: Any, texts: Sequence[str]) -> bool:
        if not words:
            return True
        body = json.dumps(read(one)[0], ensure_ascii=False, default=str)
        searched = [text.casefold() for text in (*texts, body)]
        return all(any(word in text for text in searched) for word in words)

    return test
