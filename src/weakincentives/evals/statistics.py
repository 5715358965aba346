"""The few statistics that a report needs, in plain Python."""

import math
import random
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["Interval", "bootstrap_means", "mcnemar", "percentile", "wilson"]

Z_95 = 1.959963984540054
# A resample of a large run is as good as several of a small one, and costs as much.
MAX_DRAWS = 20_000_000


class Interval(NamedTuple):
    """Where the true value lies, with 95 % confidence."""

    low: float
    high: float


def wilson(passed: int, total: int) -> Interval:
    """Return Wilson's score interval of a proportion; it holds for small samples too."""
    if total == 0:
        return Interval(0.0, 1.0)
    share, square = passed / total, Z_95 * Z_95
    middle = (share + square / (2 * total)) / (1 + square / total)
    spread = math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    half = Z_95 * spread / (1 + square / total)
    # Exact at both ends, where rounding would leave a trace.
    low = 0.0 if passed == 0 else max(middle - half, 0.0)
    return Interval(low, 1.0 if passed == total else min(middle + half, 1.0))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def mcnemar(broken: int, fixed: int) -> float:
    """Return the p-value of McNemar's exact test, two-sided: were as many broken as fixed?"""
    changed = broken + fixed
    if changed == 0:
        return 1.0
    term = total = 1
    for count in range(min(broken, fixed)):
        term = term * (changed - count) // (count + 1)
        total += term
    return min(1.0, _ratio(total, changed))


def bootstrap_means(
    pairs: Sequence[tuple[float, float]], *, seed: int, resamples: int = 2000
) -> tuple[Interval, Interval]:
    """Return the percentile intervals of both means over resampled pairs."""
    if not pairs:
        return Interval(0.0, 0.0), Interval(0.0, 0.0)
    rng, size = random.Random(seed), len(pairs)
    rounds = max(min(resamples, MAX_DRAWS // size), 100)
    firsts, seconds = [], []
    for _ in range(rounds):
        drawn = rng.choices(pairs, k=size)
        firsts.append(math.fsum(first for first, _ in drawn) / size)
        seconds.append(math.fsum(second for _, second in drawn) / size)
    return _middle(firsts), _middle(seconds)


def _middle(values: list[float]) -> Interval:
    return Interval(percentile(values, 0.025), percentile(values, 0.975))


def _ratio(total: int, changed: int) -> float:
    """Return 2 * total / 2 ** changed, also where the power is beyond a float."""
    shift = max(total.bit_length() - 64, 0)
    return math.ldexp(float(total >> shift), shift + 1 - changed)
