"""Counters and histograms that many threads add to.

Every message passes through here several times. So what most events add is added in one function
call and under one lock.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Any

from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children

from .metrics import METRICS

__all__ = ["OTHER", "Histogram", "Labels", "Tally"]

MOST_SERIES = 1000
"""How many combinations of labels a metric has: senders choose the names of reply mailboxes."""
OTHER = "(other)"
"""The label of everything beyond."""

LONGEST_LABEL = 200
"""Characters: whoever writes a dead letter chooses its source and the name of its error."""

Labels = str | tuple[str, ...]
"""The values of the labels; text if there is only one, because that is faster."""


class Histogram:
    """How many values fell under each bound, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Tally:
    """The numbers of one process since its start."""

    def __init__(self) -> None:
        # Reentrant: a signal handler may send a message while this thread holds it.
        self.lock: Any = threading.RLock()
        self._bounds = {metric.name: metric.buckets for metric in METRICS}
        self._counts: dict[str, dict[Labels, float]] = {one.name: {} for one in METRICS}
        self._histograms: dict[str, dict[Labels, Histogram]] = {one.name: {} for one in METRICS}
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        self.lock = threading.RLock()
        # Emptied and not replaced: the functions that count have them in hand.
        for counts in self._counts.values():
            counts.clear()
        for histograms in self._histograms.values():
            histograms.clear()

    def series(self, metric: str) -> dict[Labels, float]:
        """Return the counts of a metric by their labels; who adds to them holds the lock."""
        return self._counts[metric]

    def histogram_series(self, metric: str) -> dict[Labels, Histogram]:
        """Return the histograms of a metric by their labels."""
        return self._histograms[metric]

    def counter_of(self, metric: str) -> Callable[[Any], None]:
        """Return a handler that adds one for the mailbox of each event."""
        series = self._counts[metric]

        def count_one(event: Any) -> None:
            mailbox = event.mailbox
            with self.lock:
                if mailbox in series:
                    series[mailbox] += 1
                else:
                    self.count(metric, mailbox)

        return count_one

    def count(self, metric: str, labels: Labels, number: float = 1) -> None:
        """Add to a counter."""
        with self.lock:
            series = self._counts[metric]
            labels = _bounded(series, labels)
            series[labels] = series.get(labels, 0) + number

    def histogram(self, metric: str, labels: Labels) -> Histogram:
        """Return a histogram; who adds to it holds the lock."""
        series = self._histograms[metric]
        found = series.get(labels)
        if found is None:
            labels = _bounded(series, labels)
            found = series.setdefault(labels, Histogram(self._bounds[metric]))
        return found

    def record(self, metric: str, labels: Labels, value: float) -> None:
        """Add a value to a histogram."""
        with self.lock:
            self.histogram(metric, labels).add(value)

    def counts(self, metric: str) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the labels and the number of each series of a counter."""
        with self.lock:
            found = list(self._counts[metric].items())
        for labels, number in found:
            yield _as_tuple(labels), number

    def histograms(self, metric: str) -> Iterator[tuple[tuple[str, ...], list[int], float]]:
        """Yield the labels, the counts below each bound, and the sum, of each series."""
        with self.lock:
            found = [
                (_as_tuple(labels), list(one.counts), one.total)
                for labels, one in self._histograms[metric].items()
            ]
        yield from found


def _bounded(series: dict[Labels, Any], labels: Labels) -> Labels:
    """Return the labels, or those of all others if these are new and there are too many."""
    if labels in series:
        return labels
    parts = tuple(label[:LONGEST_LABEL] for label in _as_tuple(labels))
    labels = parts[0] if isinstance(labels, str) else parts
    if labels in series or len(series) < MOST_SERIES:
        return labels
    return OTHER if isinstance(labels, str) else (OTHER,) * len(labels)


def _as_tuple(labels: Labels) -> tuple[str, ...]:
    return (labels,) if isinstance(labels, str) else labels
