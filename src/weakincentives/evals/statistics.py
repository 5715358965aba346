"""The statistics of a report: intervals, percentiles and significance tests."""

import math
import random
from collections.abc import Sequence
from itertools import compress
from statistics import NormalDist
from typing import NamedTuple

__all__ = ["Interval", "difference_interval", "mcnemar", "percentile", "sign_flip", "wilson"]

Z_95 = 1.959963984540054
# Up to this many differences, all patterns of signs are tried: at most 65,536.
EXACT_UP_TO = 16
PATTERNS = 9_999
# From this many differences on, their sum is nearly normal, unless a few of them dominate.
NORMAL_FROM = 2_000
SMALL_SHARE = 0.01
SIGNS = bytes(value & 1 for value in range(256))


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


def wilson(passed: int, total: int) -> Interval:
    """Return Wilson's score interval of a proportion, which also works for small samples."""
    if total == 0:
        return Interval(0.0, 1.0)
    share, square = passed / total, Z_95 * Z_95
    middle = (share + square / (2 * total)) / (1 + square / total)
    spread = math.sqrt(share * (1 - share) / total + square / (4 * total * total))
    half = Z_95 * spread / (1 + square / total)
    # Exact at both ends, to avoid rounding errors.
    low = 0.0 if passed == 0 else max(middle - half, 0.0)
    return Interval(low, 1.0 if passed == total else min(middle + half, 1.0))


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value below which this fraction of the values lies, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def mcnemar(broken: int, fixed: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: were as many broken as fixed?"""
    changed = broken + fixed
    if changed == 0:
        return 1.0
    term = total = 1
    for count in range(min(broken, fixed)):
        term = term * (changed - count) // (count + 1)
        total += term
    return min(1.0, _ratio(total, changed))


def difference_interval(differences: Sequence[float]) -> Interval:
    """Return the 95 % interval of the mean of differences that lie between -1 and 1.

    This is Student's interval after adding one difference of -1 and one of 1. Without them, a few
    pairs that all agree would give an interval of zero width, which is far too certain.
    """
    size = len(differences) + 2
    mean = math.fsum(differences) / size
    squares = 2.0 + math.fsum(one * one for one in differences)
    variance = max(squares / size - mean * mean, 0.0) / (size - 1)
    half = _student(size - 1) * math.sqrt(variance)
    return Interval(max(mean - half, -1.0), min(mean + half, 1.0))


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> float:
    """Return the two-sided p-value of the paired permutation test: is the mean difference 0?

    If nothing had changed, each difference could as well have the opposite sign. For few
    differences all patterns of signs are tried, for many a random choice, made by the seed.
    """
    changed = [abs(one) for one in differences if one]
    if not changed:
        return 1.0
    total = math.fsum(changed)
    # Patterns with the same sum must compare as equal despite rounding.
    observed = abs(math.fsum(differences)) - 1e-9 * total
    if len(changed) <= EXACT_UP_TO:
        sums = [0.0]
        for one in changed:
            sums += [before + one for before in sums]
        return sum(abs(2 * chosen - total) >= observed for chosen in sums) / len(sums)
    squares = math.fsum(one * one for one in changed)
    if len(changed) >= NORMAL_FROM and max(changed) ** 2 <= SMALL_SHARE * squares:
        return 2 * NormalDist().cdf(-abs(math.fsum(differences)) / math.sqrt(squares))
    rng = random.Random(seed)
    patterns = PATTERNS if len(changed) < NORMAL_FROM else PATTERNS // 10
    extreme = 1 + sum(
        abs(2 * sum(compress(changed, rng.randbytes(len(changed)).translate(SIGNS))) - total)
        >= observed
        for _ in range(patterns)
    )
    return extreme / (patterns + 1)


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, to within 0.1 % from 3 degrees of freedom on."""
    z, n = Z_95, freedom
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )


def _ratio(total: int, changed: int) -> float:
    """Return 2 * total / 2 ** changed, even where the power exceeds a float."""
    shift = max(total.bit_length() - 64, 0)
    return math.ldexp(float(total >> shift), shift + 1 - changed)
