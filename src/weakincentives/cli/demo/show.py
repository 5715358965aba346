"""Shows the demo: live on a terminal, in plain lines elsewhere."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from weakincentives.cli import output, tables

from .claims import Claim

__all__ = ["Show", "print_claims"]


class Show:
    """Shows what happens, and how many answers have arrived."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._progress = progress
        self._task = progress.add_task("answers", total=total) if progress is not None else None
        self._total = total
        self._shown = 0

    def say(self, text: str) -> None:
        """Show one thing that happened."""
        if self._progress is not None:
            self._progress.console.print(Text(f"  {output.printable(text)}"))
        else:
            output.print_line(text)

    def answered(self, count: int) -> None:
        """Show how many answers have arrived."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=count)
        elif count - self._shown >= self._total // 4:
            self._shown = count
            self.say(f"{count} of {self._total} answered")

    @classmethod
    @contextmanager
    def of(cls, total: int, *, quiet: bool) -> Iterator["Show"]:
        """Yield a `Show` that fits standard output."""
        if quiet or not tables.console().is_terminal:
            yield SilentShow(total, None) if quiet else cls(total, None)
            return
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=tables.console()) as progress:
            yield cls(total, progress)


class SilentShow(Show):
    """Shows nothing, for programs that only want the result."""

    def say(self, text: str) -> None:
        """Show nothing."""

    def answered(self, count: int) -> None:
        """Show nothing."""


def print_claims(claims: list[Claim], *, as_json: bool) -> None:
    """Print every claim, and whether it holds."""
    if as_json:
        for claim in claims:
            output.print_json({"promise": claim.promise, "seen": claim.seen, "holds": claim.holds})
        return
    drawn = Table(title="What was promised, and what was seen", title_justify="left")
    for column in ("", "promise", "seen"):
        drawn.add_column(column)
    for claim in claims:
        mark = Text("✓", style="green") if claim.holds else Text("✗", style="bold red")
        drawn.add_row(mark, claim.promise, Text(output.printable(claim.seen)))
    tables.show(drawn)
