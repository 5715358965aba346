"""Printing: lines for people, JSON for machines, and never a raw control character."""

import io
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from weakincentives.error_text import printable
from weakincentives.errors import WinkError

__all__ = [
    "OutputError",
    "ReaderGoneError",
    "counted",
    "discard_output",
    "duration",
    "fail",
    "flush_output",
    "note",
    "plain_json",
    "plain_text",
    "prepare_output",
    "print_json",
    "print_line",
    "printable",
    "reporting_faults",
    "unwritten",
    "write",
]


class OutputError(WinkError):
    """Standard output cannot be written."""


class ReaderGoneError(OutputError):
    """The reader of standard output has closed it."""


def prepare_output() -> None:
    """Make standard output accept every character, whatever its encoding is."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def discard_output() -> None:
    """Drop unwritten output, so that Python does not report it again when the process ends."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError, AttributeError):
        pass  # it is not a file, or there is none


def flush_output() -> None:
    """Write what is still in the buffer; raise `OutputError` if that fails."""
    if sys.stdout is not None:
        with reporting_faults():
            sys.stdout.flush()


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def duration(seconds: float) -> str:
    """Return a length of time in the largest unit of which there are at least two."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def plain_json(value: Any) -> str:
    """Return a value as one line of JSON in plain ASCII."""
    return json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=True)


def plain_text(value: Any) -> str:
    """Return a value as JSON for people, with Unicode text but no control characters."""
    return printable(json.dumps(msgspec.to_builtins(value, str_keys=True), ensure_ascii=False))


def print_json(value: Any) -> None:
    """Print one JSON value on a line of its own."""
    write(plain_json(value) + "\n")


def print_line(text: str) -> None:
    """Print a line for people, without markup or control characters."""
    write(printable(text) + "\n")


def note(text: str) -> None:
    """Write a line to standard error, if that is possible."""
    try:
        sys.stderr.write(printable(text) + "\n")
        sys.stderr.flush()
    except (OSError, AttributeError):
        pass  # full or closed; the command goes on


def fail(message: str, code: int) -> int:
    """Print one line to standard error and return the exit code."""
    note(f"wink: {message}")
    return code


def write(text: str) -> None:
    """Write to standard output and flush, so that a fault is noticed here."""
    if sys.stdout is None:
        raise OutputError("standard output is closed")
    with reporting_faults():
        sys.stdout.write(text)
        sys.stdout.flush()


@contextmanager
def reporting_faults() -> Iterator[None]:
    """Raise `OutputError` if standard output cannot be written."""
    try:
        yield
    except OSError as error:
        raise unwritten(error) from error


def unwritten(error: OSError) -> OutputError:
    """Return the error to raise when standard output fails, and discard further output."""
    discard_output()
    if isinstance(error, BrokenPipeError):
        return ReaderGoneError()
    return OutputError(f"standard output cannot be written: {error.strerror or error}")
