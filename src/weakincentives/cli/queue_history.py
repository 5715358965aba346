"""What became of a queue over the last minute: its depth, and how fast messages come and go."""

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

from weakincentives.runtime.mailbox import MailboxStats, Peeked

__all__ = ["QueueHistory", "QueueTrend", "sparkline"]

KEPT = 60
RATE_SECONDS = 10.0
"""Rates are averages over so many seconds."""
NEWEST = 100
"""How many of the newest messages are looked at to count arrivals."""
BARS = "▁▂▃▄▅▆▇█"


class DepthReading(NamedTuple):
    """A queue at one moment."""

    at: float
    stats: MailboxStats
    arrived: int | None
    """How many messages had come since the reading before; None if that is unknown."""


class QueueTrend(NamedTuple):
    """How a queue changes, in messages per second."""

    growth: float | None
    incoming: float | None
    outgoing: float | None
    drained_in: float | None
    """Seconds until the queue is empty if all goes on like this; None if it does not shrink."""


class QueueHistory:
    """The last readings of one queue."""

    def __init__(self) -> None:
        self._readings: deque[DepthReading] = deque(maxlen=KEPT)
        self._newest: float | None = None

    @property
    def last(self) -> DepthReading:
        """The newest reading."""
        return self._readings[-1]

    @property
    def depths(self) -> list[int]:
        """How many messages were pending, oldest first."""
        return [reading.stats.pending for reading in self._readings]

    def add(self, at: float, stats: MailboxStats, newest: Sequence[Peeked[Any]] | None) -> None:
        """Add a reading; ``newest`` are the messages that came last, if they were looked at.

        Arrivals are told by the times at which the messages were sent, by one clock, compared with
        the newest such time seen before.
        """
        arrived, times = None, [one.enqueued_at.timestamp() for one in newest or ()]
        if newest is not None:
            if self._newest is not None:
                arrived = sum(time > self._newest for time in times)
            self._newest = max([*times, self._newest or 0.0])
        self._readings.append(DepthReading(at, stats, arrived))

    def trend(self) -> QueueTrend:
        """Return how the queue changes, as an average over the last seconds."""
        last = self.last
        recent = [one for one in self._readings if last.at - one.at <= RATE_SECONDS]
        seconds = last.at - recent[0].at
        if seconds <= 0:
            return QueueTrend(None, None, None, None)
        growth = (last.stats.total - recent[0].stats.total) / seconds
        counts = [one.arrived for one in recent[1:]]
        incoming = None
        if None not in counts:
            # Messages that were taken before anyone looked are missing, but growth shows some.
            incoming = max(sum(one or 0 for one in counts) / seconds, growth, 0.0)
        outgoing = None if incoming is None else incoming - growth
        drained_in = last.stats.total / -growth if growth < 0 else None
        return QueueTrend(growth, incoming, outgoing, drained_in)


def sparkline(depths: Sequence[int], width: int = 20) -> str:
    """Return a line of bars; the highest one is the largest depth shown."""
    shown = depths[-width:]
    top = max(shown, default=0)
    if not top:
        return BARS[0] * len(shown)
    # A queue that is not empty never looks empty.
    return "".join(BARS[-(-depth * (len(BARS) - 1) // top)] for depth in shown)
