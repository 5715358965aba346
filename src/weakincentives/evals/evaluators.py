"""Evaluators that most data sets need: plain functions from output and expected to a score."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import msgspec

from weakincentives.runtime import Session
from weakincentives.runtime.mailbox import InvalidParameterError

from .score import Score, judged

__all__ = [
    "all_of",
    "any_of",
    "contains",
    "exact_match",
    "json_equal",
    "regex_match",
    "within_tolerance",
]

Judge = Callable[[Any, Any, Session], Score]


def exact_match(output: Any, expected: Any) -> Score:
    """Pass if the output equals what was expected."""
    return _verdict(output == expected, f"expected {expected!r:.200}, got {output!r:.200}")


def contains(output: Any, expected: Any) -> Score:
    """Pass if what was expected is in the output: a part of a text, or one of several things."""
    return _verdict(expected in output, f"{expected!r:.200} is not in {output!r:.200}")


def regex_match(output: str, expected: str) -> Score:
    """Pass if the expected regular expression is found in the output."""
    found = re.search(expected, output) is not None
    return _verdict(found, f"{expected!r:.200} is not found in {output!r:.200}")


def json_equal(output: Any, expected: Any) -> Score:
    """Pass if both are the same JSON, whatever the order of keys and the spaces in it."""
    try:
        one, other = _plain(output), _plain(expected)
    except ValueError as error:
        return Score(0.0, False, f"not JSON: {error}")
    return _verdict(one == other, f"expected {other!r:.200}, got {one!r:.200}")


def within_tolerance(tolerance: float, *, relative: bool = False) -> Callable[[Any, Any], Score]:
    """Return an evaluator of numbers: pass if they differ by at most ``tolerance``.

    ``relative``: by at most that share of what was expected.
    """
    if not tolerance >= 0:
        raise InvalidParameterError(f"tolerance must be 0 or more, not {tolerance!r}")

    def close(output: Any, expected: Any) -> Score:
        allowed = tolerance * abs(float(expected)) if relative else tolerance
        difference = abs(float(output) - float(expected))
        near = math.isfinite(difference) and difference <= allowed
        return _verdict(near, f"{output!r:.50} is {difference:g} from {expected!r:.50}")

    return close


def all_of(*evaluators: Callable[..., Any]) -> Judge:
    """Return an evaluator that passes if all of these do; its value is their mean."""
    judges = _several(evaluators)

    def every(output: Any, expected: Any, session: Session) -> Score:
        scores = [judge(output, expected, session) for judge in judges]
        failed = [score for score in scores if not score.passed]
        mean = math.fsum(score.value for score in scores) / len(scores)
        return Score(min(mean, 1.0), not failed, _reasons(failed))

    return every


def any_of(*evaluators: Callable[..., Any]) -> Judge:
    """Return an evaluator that passes if one of these does; its value is the highest."""
    judges = _several(evaluators)

    def some(output: Any, expected: Any, session: Session) -> Score:
        scores = [judge(output, expected, session) for judge in judges]
        passed = any(score.passed for score in scores)
        best = max(score.value for score in scores)
        return Score(best, passed, None if passed else _reasons(scores))

    return some


def _several(evaluators: tuple[Callable[..., Any], ...]) -> list[Judge]:
    if not evaluators:
        raise InvalidParameterError("at least one evaluator is needed")
    return [judged(evaluator) for evaluator in evaluators]


def _verdict(passed: bool, reason: str) -> Score:
    return Score(1.0 if passed else 0.0, bool(passed), None if passed else reason)


def _reasons(scores: list[Score]) -> str | None:
    return "; ".join(score.reason for score in scores if score.reason) or None


def _plain(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else msgspec.to_builtins(value)
