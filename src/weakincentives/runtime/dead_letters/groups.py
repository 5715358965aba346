"""Dead letters, grouped by what went wrong."""

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from .find import FoundLetter
from .fingerprint import Fingerprint, fingerprint_of
from .letter import DeadLetter

__all__ = ["LetterGroup", "LetterGroups"]

MOST_GROUPS = 1_000
"""More fingerprints than this are counted as one group, because errors may be hostile."""
THE_REST = Fingerprint("(all other errors)", None)


@dataclass
class LetterGroup:
    """The letters with one fingerprint."""

    fingerprint: Fingerprint
    count: int = 0
    first: datetime | None = None
    last: datetime | None = None
    sources: set[str] = field(default_factory=set)
    example: str = ""

    def add(self, letter: DeadLetter[Any]) -> None:
        """Count a letter."""
        at = letter.dead_lettered_at
        at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
        self.count += 1
        self.first = at if self.first is None else min(at, self.first)
        if self.last is None or at >= self.last:
            self.last, self.example = at, letter.last_error
        if len(self.sources) < MOST_GROUPS:
            self.sources.add(letter.source_mailbox)

    def shown(self) -> dict[str, Any]:
        """Return the group for programs."""
        return {
            "fingerprint": self.fingerprint.id,
            "count": self.count,
            "error_type": self.fingerprint.error_type,
            "frame": self.fingerprint.frame,
            "sources": sorted(self.sources),
            "first": self.first,
            "last": self.last,
            "last_error": self.example,
        }


class LetterGroups:
    """Dead letters, grouped by their fingerprints."""

    def __init__(self) -> None:
        self._groups: dict[Fingerprint, LetterGroup] = {}
        self.count = 0

    def add(self, found: FoundLetter) -> None:
        """Count a letter in its group."""
        self.count += 1
        key = fingerprint_of(found.letter)
        if key not in self._groups and len(self._groups) >= MOST_GROUPS:
            key = THE_REST
        self._groups.setdefault(key, LetterGroup(key)).add(found.letter)

    def largest_first(self) -> list[LetterGroup]:
        """Return the groups."""
        return sorted(self._groups.values(), key=lambda group: -group.count)
