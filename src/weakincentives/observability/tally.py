"""Counters and histograms that many threads add to, in a lock's time."""

import threading
from bisect import bisect_left
from collections import defaultdict
from typing import Any, NamedTuple

from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children

from .metrics import METRICS

__all__ = ["OTHER", "Distribution", "Tally"]

MOST_SERIES = 1000
"""How many combinations of labels a metric has: senders choose the names of reply mailboxes."""
OTHER = "(other)"
"""The label of everything beyond."""

Key = tuple[str, ...]
"""The name of a metric and the values of its labels."""


class Distribution(NamedTuple):
    """A histogram: how many values fell under each bound, and their sum."""

    counts: list[int]
    total: list[float]
    """One number, in a list so that it can be changed in place."""


class Tally:
    """The numbers of one process since its start."""

    def __init__(self) -> None:
        self._bounds = {metric.name: metric.buckets for metric in METRICS}
        self._begin_anew()
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        # Reentrant: a signal handler may send a message while this thread holds it.
        self._lock: Any = threading.RLock()
        self._counts: dict[Key, float] = {}
        self._distributions: dict[Key, Distribution] = {}
        self._sizes: dict[str, int] = {}

    def count(self, key: Key, number: float = 1) -> None:
        """Add to a counter."""
        with self._lock:
            counts = self._counts
            if key not in counts:
                key = self._bounded(key)
                counts.setdefault(key, 0)
            counts[key] += number

    def record(self, key: Key, value: float) -> None:
        """Add a value to a histogram."""
        with self._lock:
            found = self._distributions.get(key)
            if found is None:
                empty = Distribution([0] * (len(self._bounds[key[0]]) + 1), [0.0])
                found = self._distributions.setdefault(self._bounded(key), empty)
            found.counts[bisect_left(self._bounds[key[0]], value)] += 1
            found.total[0] += value

    def counts(self) -> dict[str, list[tuple[Key, float]]]:
        """Return the labels and the number of each series, by the names of the counters."""
        with self._lock:
            items = list(self._counts.items())
        found: dict[str, list[tuple[Key, float]]] = defaultdict(list)
        for (name, *labels), number in items:
            found[name].append((tuple(labels), number))
        return found

    def distributions(self) -> dict[str, list[tuple[Key, list[int], float]]]:
        """Return the labels, the counts below each bound and the sum, by the names."""
        with self._lock:
            items = [
                (key, list(one.counts), one.total[0]) for key, one in self._distributions.items()
            ]
        found: dict[str, list[tuple[Key, list[int], float]]] = defaultdict(list)
        for (name, *labels), counts, total in items:
            found[name].append((tuple(labels), counts, total))
        return found

    def _bounded(self, key: Key) -> Key:
        """Return the key of a new series; that of all others if the metric has too many."""
        name = key[0]
        size = self._sizes.get(name, 0)
        if size >= MOST_SERIES:
            return (name, *[OTHER] * (len(key) - 1))
        self._sizes[name] = size + 1
        return key
