"""Shows the progress of a run."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["shown_progress"]

Progress = Callable[[int, int], object]


@contextmanager
def shown_progress(
    progress: Progress | None, expected: int, what: str = "results"
) -> Iterator[Progress]:
    """Yield a function that shows progress: the caller's own, a bar on a terminal, or none."""
    if progress is not None:
        yield progress
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(expected, what) as update:
            yield update
    else:
        yield _ignore


def _ignore(done: int, expected: int) -> None:
    """Show nothing."""


@contextmanager
def _bar(expected: int, what: str) -> Iterator[Progress]:
    rich = importlib.import_module("rich.progress")
    console = importlib.import_module("rich.console").Console(stderr=True)
    columns = (
        rich.TextColumn(what),
        rich.BarColumn(),
        rich.MofNCompleteColumn(),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
    )
    with rich.Progress(*columns, console=console) as bar:
        task = bar.add_task(what, total=expected)

        def update(done: int, expected: int) -> None:
            bar.update(task, completed=done)

        yield update
