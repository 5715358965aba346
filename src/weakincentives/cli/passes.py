"""Passes over a queue that show what they would do, ask, do it, and can be stopped."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer

from weakincentives.evals.progress import shown_progress
from weakincentives.runtime.leases.walk import Walk
from weakincentives.runtime.mailbox.mailbox import StoreMailbox

from . import output
from .progress import ProgressLines, stoppable

__all__ = ["DryRunOption", "EnoughError", "Pass", "YesOption", "looking"]

F = TypeVar("F")

SHOWN_AFTER, SHOWN_EVERY = 1.0, 0.2
PAST = {"replay": "replayed", "discard": "discarded", "move": "moved"}

YesOption = Annotated[
    bool, typer.Option("--yes", help="Do it, without showing first what would be done.")
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")]


class EnoughError(Exception):
    """Nothing more is to be looked at."""


class Pass:
    """A pass over the messages of one queue, which is rehearsed first and can be stopped."""

    def __init__(self, verb: str, box: StoreMailbox[Any, Any], noun: str, as_json: bool) -> None:
        self._verb = verb
        self._box = box
        self._noun = noun
        self._as_json = as_json
        self._matching: int | None = None
        self._done = 0
        self._stopped = False

    def rehearse(self, walk: Walk[F], each: Callable[[F], object]) -> int:
        """Count what would be taken, and return that."""
        self._matching = 0
        with looking(self._box, f"{self._noun}s") as looked:
            for found in walk.watched_by(looked):
                self._matching += 1
                each(found)
        return self._matching

    def is_confirmed(self, dry_run: bool) -> bool:
        """Return whether to go on after the rehearsal; without a terminal, say how."""
        if dry_run or not self._matching:
            return False
        if sys.stdin is None or not sys.stdin.isatty():
            output.note("wink: nothing was done yet; pass --yes to do it")
            return False
        return typer.confirm(f"{self._verb.capitalize()} {self._counted(self._matching)}?")

    def carry_out(self, walk: Walk[Any]) -> None:
        """Take what was rehearsed, and not more; say what was done, also if it is stopped."""
        try:
            with looking(self._box, f"{self._noun}s") as looked:
                self._take(walk.watched_by(looked))
        except (SystemExit, KeyboardInterrupt):
            self._stopped = True
            raise
        finally:
            self.tell()

    def tell(self, **facts: Any) -> None:
        """Print what was done, or how much would be."""
        if self._as_json:
            counts = {"matching": self._matching, "done": self._done, "stopped": self._stopped}
            output.print_json({"queue": self._box.name, "action": self._verb, **counts, **facts})
        elif self._done or self._stopped or self._matching is None:
            rest = "; stopped, and the rest was left alone" if self._stopped else ""
            output.print_line(f"{PAST[self._verb]} {self._counted(self._done)}{rest}")
        elif not self._matching:
            output.print_line(f"No {self._noun} of {self._box.name} matches.")

    def _take(self, walk: Iterable[Any]) -> None:
        for _ in walk:
            self._done += 1
            if self._done == self._matching:
                return

    def _counted(self, number: int) -> str:
        return f"{output.counted(number, self._noun)} of {self._box.name}"


@contextmanager
def looking(box: StoreMailbox[Any, Any], what: str, most: int = 0) -> Iterator[Callable[[], None]]:
    """Yield a function to call before each message: it shows progress, and may end the pass."""
    waiting = box.stats().pending
    plain = None if sys.stderr is not None and sys.stderr.isatty() else ProgressLines(what)
    with (
        stoppable() as stop_if_signalled,
        shown_progress(plain, min(waiting, most or waiting), what) as show,
    ):
        yield Looked(waiting, most, stop_if_signalled, show)


class Looked:
    """Counts the messages that were looked at, and shows now and then how many."""

    def __init__(
        self,
        waiting: int,
        most: int,
        stop_if_signalled: Callable[[], None],
        show: Callable[[int, int], object],
    ) -> None:
        self._waiting = waiting
        self._most = most
        self._stop_if_signalled = stop_if_signalled
        self._show = show
        self._next = time.monotonic() + SHOWN_AFTER
        self._count = 0

    def __call__(self) -> None:
        """Count one more; raise if that is one too many, or a signal came."""
        self._stop_if_signalled()
        if self._most and self._count >= self._most:
            of = max(self._waiting, self._count + 1)
            output.note(f"wink: looked at the first {self._count} of {of}; --scan 0 looks at all")
            raise EnoughError
        now = time.monotonic()
        if now >= self._next:
            self._next = now + SHOWN_EVERY
            self._show(self._count, max(self._waiting, self._count))
        self._count += 1
