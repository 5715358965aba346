"""Shows the progress of a command, and stops it on a signal."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weakincentives.evals.progress import shown_progress

from .output import note

__all__ = ["ProgressLines", "progress", "stoppable"]

PLAIN_LINES_EVERY = 5.0


@contextmanager
def progress(expected: int, what: str = "results") -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, and a line now and then elsewhere; end on a signal."""
    plain = None if sys.stderr.isatty() else ProgressLines(what)
    with shown_progress(plain, expected, what) as show, stoppable() as stop_if_signalled:

        def looked(done: int, expected: int) -> None:
            stop_if_signalled()
            show(done, expected)

        yield looked


@contextmanager
def stoppable() -> Iterator[Callable[[], None]]:
    """Yield a function that exits if a signal came, at a moment that the caller chooses."""
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)

    def note_signal(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt  # a second signal means: at once
        came.append(number)

    before = [signal.signal(one, note_signal) for one in signals]

    def stop_if_signalled() -> None:
        if came:
            raise SystemExit(128 + came[0])

    try:
        yield stop_if_signalled
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


class ProgressLines:
    """Writes how far a command has come to standard error, every few seconds."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._last = -1
        self._next = 0.0

    def __call__(self, done: int, expected: int) -> None:
        now = time.monotonic()
        if done != self._last and (now >= self._next or done >= expected):
            self._last, self._next = done, now + PLAIN_LINES_EVERY
            note(f"{done} of {expected} {self._what}")
