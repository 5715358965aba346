"""What ``wink`` prints: tables for people, JSON for machines, never a raw control character."""

import json
import sys
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["console", "fail", "plain_json", "plain_text", "print_json", "print_table", "printable"]

# Escapes, line ends and marks that turn the direction of text: a body must not drive the terminal.
UNPRINTABLE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


def console() -> Console:
    """Return a console for whatever standard output is now."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty())


def printable(text: str) -> str:
    """Return the text with every character that could drive a terminal written as an escape."""
    return "".join(
        char if unicodedata.category(char) not in UNPRINTABLE else _escaped(char) for char in text
    )


def plain_json(value: Any) -> str:
    """Return a value as one line of JSON in plain ASCII."""
    return json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=True)


def plain_text(value: Any) -> str:
    """Return a value as JSON for people: every script as it is, no control character."""
    return printable(json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=False))


def print_json(value: Any) -> None:
    """Print one JSON value on a line of its own."""
    sys.stdout.write(plain_json(value) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Print rows for people; numbers to the right."""
    console().print(table(title, columns, rows))


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


def fail(message: str, code: int) -> int:
    """Print one line to standard error and return the exit code."""
    sys.stderr.write(f"wink: {printable(message)}\n")
    return code


def _escaped(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
