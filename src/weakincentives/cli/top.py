"""The command that shows the queues as they change."""

import math
import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.seam.backend import Backend

from . import output, tables
from .backends import connect_existing, newest_messages, store_mailbox
from .queue_history import NEWEST, QueueHistory, sparkline
from .queues import DEFAULT_URL, JsonOption, QueuesArgument, UrlOption

__all__ = ["register"]

LIST_EVERY = 10.0
SHORTEST_INTERVAL = 0.05
BUDGET = 0.5
"""The part of an interval that may be spent on reading queues."""
FIRST_LOOK = 2.0
"""The first look may take as long as one with this interval, so that most queues are in it."""
SHOWN = 30
SPARKS = 12
COLUMNS = (
    *("queue", "pending", "in\nflight", "delayed", "oldest"),
    *("in/s", "out/s", "drained\nin", "last\nminute"),
)


class SortBy(StrEnum):
    """What the queues are sorted by."""

    TROUBLE = "trouble"
    NAME = "name"
    PENDING = "pending"
    IN = "in"
    OUT = "out"
    GROWTH = "growth"


def register(app: typer.Typer) -> None:
    """Add the command to ``wink``."""
    app.command()(top)


def top(
    queues: QueuesArgument = None,
    sort: Annotated[SortBy, typer.Option(help="What comes first.")] = SortBy.TROUBLE,
    interval: Annotated[float, typer.Option(help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look twice, print once, and end.")] = False,
    url: UrlOption = DEFAULT_URL,
    as_json: JsonOption = False,
) -> None:
    """Show depths and rates of the queues, again and again. Keys: q quits, s sorts by the next."""
    if not SHORTEST_INTERVAL <= interval < math.inf:
        raise InvalidParameterError(f"--interval must be {SHORTEST_INTERVAL} s or more")
    with connect_existing(url) as backend:
        watch = QueueWatch(backend, queues, sort)
        watch.look(max(interval, FIRST_LOOK))
        if once:
            time.sleep(interval)
            watch.look(interval)
            _print(watch, as_json)
        elif as_json or not sys.stdout.isatty():
            _print_again_and_again(watch, interval, as_json)
        else:
            _show_live(watch, interval)


class QueueWatch:
    """The queues of a backend, read in turns so that no refresh takes long."""

    def __init__(self, backend: Backend, names: list[str] | None, order: SortBy) -> None:
        self._backend = backend
        self._asked = names
        self.order = order
        self._names: list[str] = []
        self._listed = -math.inf
        self._turn = 0
        self._histories: dict[str, QueueHistory] = {}

    def look(self, interval: float) -> None:
        """Read the queues that are shown, and as many others as there is time for."""
        began = time.monotonic()
        if began - self._listed >= LIST_EVERY:
            self._names = self._asked or self._backend.queues()
            self._listed = began
            known = set(self._names)
            self._histories = {n: h for n, h in self._histories.items() if n in known}
        until = time.monotonic() + max(BUDGET * interval, SHORTEST_INTERVAL)
        shown = self.shown()
        for name in shown:
            self._read(name)
        others = len(self._names)
        while others and time.monotonic() < until:
            others -= 1
            name = self._names[self._turn % len(self._names)]
            self._turn += 1
            if name not in shown:
                self._read(name)

    def _read(self, name: str) -> None:
        box = store_mailbox(self._backend, name)
        stats = box.stats()
        newest = newest_messages(box, NEWEST, stats.pending)
        self._histories.setdefault(name, QueueHistory()).add(time.monotonic(), stats, newest)

    def shown(self) -> list[str]:
        """Return the queues that come first."""
        return sorted(self._histories, key=self._rank)[:SHOWN]

    def _rank(self, name: str) -> tuple[float, float, str]:
        history = self._histories[name]
        stats, trend = history.last.stats, history.trend()
        first = {
            SortBy.TROUBLE: stats.oldest_age_seconds or 0.0,
            SortBy.NAME: 0.0,
            SortBy.PENDING: stats.pending,
            SortBy.IN: trend.incoming or 0.0,
            SortBy.OUT: trend.outgoing or 0.0,
            SortBy.GROWTH: trend.growth or 0.0,
        }[self.order]
        return -first, 0.0 if self.order == SortBy.NAME else -stats.pending, name

    @property
    def unread(self) -> int:
        """How many queues have not been read yet."""
        return len(self._names) - len(self._histories)

    @property
    def hidden(self) -> int:
        """How many queues were read and are not shown."""
        return max(len(self._histories) - SHOWN, 0)

    def facts(self) -> Iterator[dict[str, Any]]:
        """Yield what is known of each queue that is shown."""
        for name in self.shown():
            history = self._histories[name]
            stats, trend = history.last.stats, history.trend()
            yield {
                "queue": name,
                "pending": stats.pending,
                "in_flight": stats.in_flight,
                "delayed": stats.delayed,
                "oldest_age_seconds": stats.oldest_age_seconds,
                "paused": stats.paused,
                "in_per_second": _rounded(trend.incoming),
                "out_per_second": _rounded(trend.outgoing),
                "growth_per_second": _rounded(trend.growth),
                "drained_in_seconds": _rounded(trend.drained_in),
                "depths": history.depths,
            }

    def drawn(self) -> Group:
        """Return the table and what it leaves out."""
        rows = (_row(facts) for facts in self.facts())
        table = tables.table(f"Queues by {self.order}", COLUMNS, rows)
        table.box = None  # so that it fits into 80 columns
        table.collapse_padding = True  # and names of queues need not be broken
        notes = []
        if self.hidden:
            notes.append(f"{self.hidden} more; sort otherwise, or name queues")
        if self.unread:
            notes.append(f"{self.unread} not read yet")
        return Group(table, *(Text(note) for note in notes))


def _row(facts: dict[str, Any]) -> tuple[object, ...]:
    age, drained = facts["oldest_age_seconds"], facts["drained_in_seconds"]
    return (
        *(facts[name] for name in ("queue", "pending", "in_flight", "delayed")),
        None if age is None else output.duration(age),
        _rate(facts["in_per_second"]),
        _rate(facts["out_per_second"]),
        _drained_in(drained, facts["paused"]),
        sparkline(facts["depths"], SPARKS),
    )


def _drained_in(seconds: float | None, is_paused: bool) -> str | None:
    if is_paused:
        return "paused"
    return None if seconds is None else output.duration(seconds)


def _rate(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f}"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def _print(watch: QueueWatch, as_json: bool) -> None:
    if not as_json:
        tables.show(watch.drawn())
        return
    for facts in watch.facts():
        output.print_json(facts)


def _print_again_and_again(watch: QueueWatch, interval: float, as_json: bool) -> None:
    while True:
        time.sleep(interval)
        watch.look(interval)
        _print(watch, as_json)


def _show_live(watch: QueueWatch, interval: float) -> None:
    with (
        _keys() as next_key,
        Live(console=tables.console(), auto_refresh=False, screen=True) as live,
    ):
        _refresh(watch, interval, next_key, live)


def _refresh(watch: QueueWatch, interval: float, next_key: Any, live: Live) -> None:
    orders = list(SortBy)
    while True:
        live.update(watch.drawn(), refresh=True)
        key = next_key(interval)
        if key == "q":
            return
        if key == "s":
            watch.order = orders[(orders.index(watch.order) + 1) % len(orders)]
        else:
            watch.look(interval)


@contextmanager
def _keys() -> Iterator[Any]:
    """Yield a function that waits for a key; it returns "" after so many seconds without one."""
    if sys.stdin is None or not sys.stdin.isatty():
        yield _no_key
        return
    import termios  # there is none on Windows
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin)
        yield _key
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""


def _key(seconds: float) -> str:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    # Not through the buffer of sys.stdin: select would not see what is left there.
    return os.read(sys.stdin.fileno(), 1).decode("ascii", "replace").lower() if readable else ""
