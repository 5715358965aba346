"""Prints dead letters, grouped by what went wrong."""

from datetime import UTC, datetime

from weakincentives.runtime.dead_letters.groups import LetterGroups

from . import output

__all__ = ["print_groups", "short", "time_text"]

SHOWN_TEXT = 100


def print_groups(groups: LetterGroups, title: str) -> None:
    """Print the groups for people."""
    output.print_line(title)
    for group in groups.largest_first():
        error, frame = group.fingerprint
        output.print_line("")
        letters = output.counted(group.count, "letter")
        output.print_line(f"{group.fingerprint.id}  {letters}  {error}")
        sources = ", ".join(sorted(group.sources))
        when = f"first {time_text(group.first)}, last {time_text(group.last)}"
        output.print_line(f"    from {sources}; {when}")
        output.print_line(f"    {'' if frame is None else f'{frame}: '}{short(group.example)}")


def time_text(at: datetime | None) -> str:
    """Return a time for people, in UTC."""
    return "-" if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def short(text: str) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= SHOWN_TEXT else text[: SHOWN_TEXT - 1] + "…"
