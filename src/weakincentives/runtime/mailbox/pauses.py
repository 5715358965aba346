"""Queues that are paused for all workers."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from weakincentives.serde import Codec, DecodeError

from .errors import InvalidParameterError
from .queue_names import check_name
from .seam.process_name import process_name

__all__ = ["QueuePause", "encoded_pause", "new_pause", "pauses_of"]

LONGEST_TEXT = 1000


@dataclass(frozen=True, slots=True)
class QueuePause:
    """Who has paused a queue, when and why."""

    queue: str
    paused_at: datetime
    by: str
    because: str | None = None


_CODEC = Codec(QueuePause)


def new_pause(queue: str, by: str | None, because: str | None = None) -> QueuePause:
    """Check the texts, and return what is kept of a pause that begins now."""
    by = process_name() if by is None else by
    for name, text in (("by", by), ("because", because)):
        if text is not None and (type(text) is not str or len(text) > LONGEST_TEXT):
            raise InvalidParameterError(
                f"{name} must be a text of at most {LONGEST_TEXT} characters, not {text!r:.100}"
            )
    return QueuePause(check_name(queue), datetime.now(UTC), by, because)


def encoded_pause(pause: QueuePause) -> bytes:
    """Return what is kept in the table."""
    return _CODEC.encode(pause)


def pauses_of(notes: Iterable[tuple[str, bytes]]) -> list[QueuePause]:
    """Return the pauses that the table tells of, by the name of their queue."""
    return sorted((_pause_of(*note) for note in notes), key=lambda pause: pause.queue)


def _pause_of(queue: str, note: bytes) -> QueuePause:
    """Return the pause that a note tells of; one that cannot be read is a pause all the same."""
    try:
        pause: QueuePause = _CODEC.decode(note, None)
    except DecodeError:
        return QueuePause(queue, datetime.fromtimestamp(0, UTC), "unknown")
    return QueuePause(queue, pause.paused_at, pause.by, pause.because)
