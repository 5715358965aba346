"""Tables for people; a process that prints none does not load what draws them."""

import sys
from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from .output import printable, reporting_faults, write

__all__ = ["console", "print_table", "show", "table"]


def console() -> Console:
    """Return a console on standard output."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    return Console(highlight=False, markup=False, soft_wrap=not terminal)


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print a table for people."""
    show(table(title, columns, rows))


def show(drawn: RenderableType) -> None:
    """Print a renderable object of rich."""
    target = console()
    with reporting_faults(), target.capture() as captured:
        target.print(drawn)
    write(captured.get())


def table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> Table:
    """Return a table whose cells are safe to show."""
    drawn = Table(title=Text(printable(title)), title_justify="left")
    shown = [[cell if cell is not None else "-" for cell in row] for row in rows]
    for index, name in enumerate(columns):
        numeric = bool(shown) and all(isinstance(row[index], int | float) for row in shown)
        drawn.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in shown:
        drawn.add_row(*(Text(printable(str(cell))) for cell in row))
    return drawn
