"""What ``wink eval`` says while it waits, and how it is stopped."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from weakincentives.cli.output import printable
from weakincentives.evals.progress import shown_progress

__all__ = ["note", "progress"]

PLAIN_LINES_EVERY = 5.0


def note(text: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(printable(text) + "\n")
    sys.stderr.flush()


@contextmanager
def progress(expected: int) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on a terminal, and a plain line now and then elsewhere; end on a signal."""
    plain = None if sys.stderr.isatty() else _PlainLines()
    with shown_progress(plain, expected) as told, _stoppable() as stop_if_told:

        def looked(done: int, expected: int) -> None:
            stop_if_told()
            told(done, expected)

        yield looked


@contextmanager
def _stoppable() -> Iterator[Callable[[], None]]:
    """Yield what exits as the signal would have, between two looks: results are given back."""
    came: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)

    def tell(number: int, frame: object) -> None:
        if came:
            raise KeyboardInterrupt  # whoever asks twice does not want to wait
        came.append(number)

    before = [signal.signal(one, tell) for one in signals]

    def stop_if_told() -> None:
        if came:
            raise SystemExit(128 + came[0])

    try:
        yield stop_if_told
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


class _PlainLines:
    def __init__(self) -> None:
        self._last = -1
        self._next = 0.0

    def __call__(self, done: int, expected: int) -> None:
        now = time.monotonic()
        if done != self._last and (now >= self._next or done >= expected):
            self._last, self._next = done, now + PLAIN_LINES_EVERY
            note(f"{done} of {expected} results")
