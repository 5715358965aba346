"""Showing how far a run has come."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["shown_progress"]

Progress = Callable[[int, int], object]


@contextmanager
def shown_progress(progress: Progress | None, expected: int) -> Iterator[Progress]:
    """Yield whom to tell: the caller's own function, a bar on a terminal, or nobody."""
    if progress is not None:
        yield progress
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(expected) as told:
            yield told
    else:
        yield _nobody


def _nobody(done: int, expected: int) -> None:
    """Nobody looks."""


@contextmanager
def _bar(expected: int) -> Iterator[Progress]:
    rich = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (
        rich.TextColumn("results"),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console) as bar:
        task = bar.add_task("results", total=expected)

        def told(done: int, expected: int) -> None:
            bar.update(task, completed=done)

        yield told
