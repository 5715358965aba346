"""A row of counts as the points of a small line."""

from collections.abc import Sequence

from .history import Sample

__all__ = ["HEIGHT", "WIDTH", "sparkline"]

WIDTH, HEIGHT = 120, 24
MOST_POINTS = 60


def sparkline(samples: Sequence[Sample], since: float, until: float) -> str:
    """Return the points of an SVG polyline: how many messages waited from then until now."""
    if not samples or until <= since:
        return ""
    # Only changes are recorded, so that each count holds until the next one.
    slot = (until - since) / MOST_POINTS
    first = min(max(int((samples[0].at - since) / slot), 0), MOST_POINTS - 2)
    values: list[int] = []
    index, value = 0, _waiting(samples[0])
    for number in range(first, MOST_POINTS):
        end, highest = since + (number + 1) * slot, value
        while index < len(samples) and samples[index].at < end:
            value = _waiting(samples[index])
            highest = max(highest, value)
            index += 1
        values.append(highest)
    values[-1] = value
    top = max(values) or 1
    step = WIDTH / (MOST_POINTS - 1)
    return " ".join(
        f"{number * step:.1f},{HEIGHT - 1 - value / top * (HEIGHT - 2):.1f}"
        for number, value in enumerate(values, first)
    )


def _waiting(sample: Sample) -> int:
    return sample.counts.pending + sample.counts.delayed
