"""The queues that the loops of this process serve, counted when somebody looks."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from weakincentives.runtime.group.last_reading import LastReading, refresh
from weakincentives.runtime.mailbox.api import MailboxStats
from weakincentives.runtime.mailbox.mailbox import StoreMailbox

from .observe import ServedMailbox

__all__ = ["QueueGauges", "QueueReading"]

MAX_AGE = 5.0
"""How many seconds old a count may be before the queue is asked again."""
STALE_AFTER = 60.0
"""How many seconds after the last answer of a queue its counts are no longer shown."""


class QueueReading(NamedTuple):
    """What is known of a queue."""

    name: str
    stats: MailboxStats | None
    """None if it could not be counted lately."""
    is_up: bool
    """Whether its last count succeeded."""
    places: int
    """How many jobs loops of this process run at once; 0 if none serves it."""
    has_dead_letters: bool


class QueueGauges:
    """The queues of one process, by name; each is asked in a thread, and a hanging one delays none.

    Two queues of the same name in different backends are one here: the first is asked.
    """

    def __init__(self) -> None:
        self._readings: dict[str, LastReading[MailboxStats]] = {}
        self._places: dict[str, int] = {}
        self._letters: set[str] = set()
        self._known: list[ServedMailbox] = []

    def add(self, served: ServedMailbox) -> None:
        """Count this queue from now on."""
        # By identity: loops with the same settings are as many as they are.
        if any(served.loop is one.loop and served.mailbox is one.mailbox for one in self._known):
            return
        self._known.append(served)
        mailbox = served.mailbox
        name = getattr(mailbox, "name", "-")
        if name not in self._readings:
            self._readings[name] = LastReading(name, _question(mailbox))
        if served.places:
            self._places[name] = self._places.get(name, 0) + served.places
        if served.has_dead_letters:
            self._letters.add(name)

    def holds_dead_letters(self, name: str) -> bool:
        """Return whether this is known to be a queue of dead letters."""
        return name in self._letters

    def note_dead_letters(self, name: str) -> None:
        """Take note that dead letters were sent to this queue."""
        self._letters.add(name)

    def read(self) -> Iterator[QueueReading]:
        """Yield what is known of each queue, after asking those that were not asked lately."""
        readings = list(self._readings.values())
        refresh(readings, MAX_AGE)
        for reading in readings:
            name, age = reading.name, reading.age
            yield QueueReading(
                name,
                reading.value if age < STALE_AFTER else None,
                reading.error is None and age < STALE_AFTER,
                self._places.get(name, 0),
                name in self._letters,
            )


def _question(mailbox: Any) -> Any:
    if isinstance(mailbox, StoreMailbox):
        return mailbox._stats_from_thread
    return mailbox.stats
