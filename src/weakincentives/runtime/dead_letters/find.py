"""Finds dead letters in their mailbox."""

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.runtime.mailbox.envelope import JsonSealer
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.store import Seen
from weakincentives.runtime.worker.type_arguments import bind
from weakincentives.serde import Codec

from .letter import DeadLetter, log_processing

__all__ = ["FoundLetter", "LetterFinder", "discard"]

logger = get_logger(__name__)

MOST_LOGGED = 10
"""A queue of other messages, taken for one of letters, must not flood the log."""

_PLAIN = Codec(DeadLetter[Any])


class FoundLetter(NamedTuple):
    """A dead letter, and the id that it has in its mailbox."""

    id: str
    letter: DeadLetter[Any]


class LetterFinder:
    """Reads messages as dead letters, and returns those that are wanted."""

    def __init__(
        self, dlq: StoreMailbox[Any, Any], wanted: Callable[[FoundLetter], bool] | None
    ) -> None:
        bind(dlq, DeadLetter[Any], None)  # unless its type is known
        self._dlq = dlq
        self._wanted = wanted
        self._json = JsonSealer(_PLAIN, dlq.limits.max_bytes)
        self.strangers = 0
        """How many messages are not dead letters."""

    def __call__(self, seen: Seen) -> FoundLetter | None:
        """Return the letter in a message; None if it is not wanted, or not a letter."""
        try:
            found = FoundLetter(seen.id, self._read(seen.payload))
        except SerializationError as error:
            self.strangers += 1
            if self.strangers <= MOST_LOGGED:
                logger.warning("%s is not a dead letter and stays in place: %s", seen.id, error)
            return None
        return found if self._wanted is None or self._wanted(found) else None

    def _read(self, payload: Any) -> DeadLetter[Any]:
        sealer = self._dlq._sealer
        envelope = sealer.open(payload)
        try:
            letter = sealer.body(envelope)
        except SerializationError:
            if not isinstance(envelope.body, msgspec.Raw):
                raise
            # Its body has a type that is unknown here, but it can still be sent again.
            letter = self._json.body(envelope)
        if not isinstance(letter, DeadLetter):
            raise SerializationError(f"its body is a {type(letter).__name__}")
        return letter


def discard(seen: Seen, found: FoundLetter) -> None:
    """Log that a letter is discarded; the walk that found it removes it."""
    log_processing(found.letter, "discard")
