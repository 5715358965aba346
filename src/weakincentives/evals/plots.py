"""Draws the plots of a report as SVG, so that the page needs no scripts."""

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from .formats import milliseconds, percent
from .report import TagSummary
from .statistics import percentile

__all__ = ["latency_plot", "score_plot", "tag_plot"]

# Narrow enough for the labels to stay readable on a phone.
WIDTH, HEIGHT = 400, 210
LEFT, RIGHT, TOP, BOTTOM = 40, 14, 24, 36
ROW = 34
BINS = 20
SHOWN_TAGS = 40


class Bin(NamedTuple):
    """One bar of a histogram."""

    low: float
    high: float
    samples: int


def score_plot(values: Sequence[float]) -> str:
    """Return a histogram of the scores."""
    bins = binned(values, 0.0, 1.0, BINS // 2)
    ticks = [(at, f"{at:g}") for at in (0.0, 0.25, 0.5, 0.75, 1.0)]
    label = f"Histogram of {len(values)} scores"
    return _histogram("scores", label, bins, ticks, [], "score")


def latency_plot(values: Sequence[float]) -> str:
    """Return a histogram of the latencies with p50 and p95; the last bar has all slower ones."""
    top = _round_up(percentile(values, 0.99))
    bins = binned(values, 0.0, top, BINS)
    ticks = [(top * n / 4, milliseconds(top * n / 4) if n else "0") for n in range(5)]
    marks = [(name, percentile(values, share)) for name, share in (("p50", 0.5), ("p95", 0.95))]
    shown = [(name, at) for name, at in marks if at <= top]
    slowest = max(values)
    axis = "latency" if slowest <= top else f"latency; slowest {milliseconds(slowest)}"
    label = f"Distribution of {len(values)} latencies"
    return _histogram("latencies", label, bins, ticks, shown, axis)


def tag_plot(tags: Sequence[TagSummary]) -> str:
    """Return a bar chart of the pass rate of each tag, with its 95 % interval."""
    shown = tags[:SHOWN_TAGS]
    height = ROW * len(shown) + 20
    parts = [
        _text(x, height - 4, label, anchor)
        for x, label, anchor in (
            (0, "0%", "start"),
            (WIDTH / 2, "50%; the line is the 95 % interval", "middle"),
            (WIDTH, "100%", "end"),
        )
    ]
    for row, one in enumerate(shown):
        top = row * ROW
        figures = f"{percent(one.pass_rate)} of {one.total:,}"
        title = f"{one.tag}: {one.passed} of {one.total} passed"
        parts += [
            _text(0, top + 11, _short(one.tag), "start", "name"),
            _text(WIDTH, top + 11, figures, "end"),
            _rect(0, top + 16, WIDTH, 10, "track"),
            _rect(0, top + 16, WIDTH * one.pass_rate, 10, "bar", title),
        ]
        low, high = (WIDTH * end for end in one.interval)
        ends = "".join(f"M{end:.1f} {top + 18}v6" for end in (low, high))
        parts.append(f'<path class="whisker" d="M{low:.1f} {top + 21}H{high:.1f}{ends}"/>')
    if len(tags) > len(shown):
        parts.append(_text(0, height + 12, f"and {len(tags) - len(shown)} more tags", "start"))
        height += 18
    return _svg("tags", f"Pass rate of {len(shown)} tags", height, parts)


def binned(values: Sequence[float], low: float, high: float, count: int) -> list[Bin]:
    """Count the values in bins of equal width; larger values count in the last bin."""
    width = (high - low) / count
    counts = [0] * count
    for value in values:
        counts[max(0, min(int((value - low) / width), count - 1))] += 1
    return [Bin(low + n * width, low + (n + 1) * width, c) for n, c in enumerate(counts)]


def _histogram(
    kind: str,
    label: str,
    bins: list[Bin],
    ticks: list[tuple[float, str]],
    marks: list[tuple[str, float]],
    axis: str,
) -> str:
    low, high = bins[0].low, bins[-1].high
    highest = max(bin.samples for bin in bins) or 1
    wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    floor = HEIGHT - BOTTOM

    def across(value: float) -> float:
        return LEFT + wide * (value - low) / (high - low)

    parts = []
    for line in _count_ticks(highest):
        y = floor - tall * line / highest
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(_text(LEFT - 5, y + 4, f"{line:,}", "end"))
    for bin in bins:
        if bin.samples:
            # A single sample among ten thousand must still be visible.
            bar = max(tall * bin.samples / highest, 1.5)
            x = across(bin.low) + 0.8
            title = f"{bin.low:.3g} to {bin.high:.3g}: {bin.samples}"
            bar_width = across(bin.high) - across(bin.low) - 1.6
            parts.append(_rect(x, floor - bar, bar_width, bar, "bar", title))
    parts.append(f'<path class="axis" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>')
    for at, name in ticks:
        anchor = "start" if at == low else "end" if at == high else "middle"
        parts.append(_text(across(at), floor + 14, name, anchor))
    parts.append(_text(LEFT + wide / 2, HEIGHT - 4, axis, "middle"))
    previous = -math.inf
    for name, at in marks:
        x = across(at)
        # If two marks are close together, the label of the second goes beside its line.
        anchor, shift = ("start", 3.0) if x - previous < 30 else ("middle", 0.0)
        parts.append(f'<path class="mark" d="M{x:.1f} {TOP - 6}V{floor}"/>')
        parts.append(_text(x + shift, TOP - 10, name, anchor))
        previous = x
    return _svg(kind, label, HEIGHT, parts)


def _count_ticks(highest: int) -> list[int]:
    step = max(int(_round_up(highest / 4)), 1)
    return list(range(step, highest + 1, step))


def _round_up(value: float) -> float:
    """Return the next larger number that is easy to read, such as 2.5 or 8 times a power of ten."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(
        power * step for step in (1, 2, 2.5, 4, 5, 8, 10) if value <= power * step * 1.0000001
    )


def _svg(kind: str, label: str, height: float, parts: list[str]) -> str:
    return (
        f'<svg class="plot" id="plot-{kind}" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label)}">{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    shown = f' class="{kind}"' if kind else ""
    return f'<text{shown} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _rect(x: float, y: float, width: float, height: float, kind: str, title: str = "") -> str:
    inside = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
        f'height="{height:.1f}" rx="1.5">{inside}</rect>'
    )


def _short(text: str) -> str:
    return text if len(text) <= 36 else text[:35] + "…"
