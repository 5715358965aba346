"""Ready-made evaluators: functions that score an output against what was expected."""

import asyncio
import json
import math
import re
from collections.abc import Callable
from inspect import isawaitable
from typing import Any

import msgspec

from weakincentives.runtime import Session
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.worker.validation import is_async

from .score import Score, as_score, as_session_evaluator

__all__ = [
    "all_of",
    "any_of",
    "contains",
    "exact_match",
    "json_equal",
    "regex_match",
    "within_tolerance",
]

Judge = Callable[[Any, Any, Session], Any]
"""Returns a score, or an awaitable of one if an evaluator in it is async."""


def exact_match(output: Any, expected: Any) -> Score:
    """Pass if the output equals what was expected."""
    return _verdict(output == expected, f"expected {expected!r:.200}, got {output!r:.200}")


def contains(output: Any, expected: Any) -> Score:
    """Pass if the output contains what was expected: a substring, or an element of a list."""
    return _verdict(expected in output, f"{expected!r:.200} is not in {output!r:.200}")


def regex_match(output: str, expected: str) -> Score:
    """Pass if the expected regular expression matches somewhere in the output."""
    found = re.search(expected, output) is not None
    return _verdict(found, f"{expected!r:.200} is not found in {output!r:.200}")


def json_equal(output: Any, expected: Any) -> Score:
    """Pass if both are the same JSON, ignoring white space and the order of keys."""
    try:
        one, other = _plain(output), _plain(expected)
    except ValueError as error:
        return Score(0.0, False, f"not JSON: {error}")
    return _verdict(one == other, f"expected {other!r:.200}, got {one!r:.200}")


def within_tolerance(tolerance: float, *, relative: bool = False) -> Callable[[Any, Any], Score]:
    """Return an evaluator that passes if two numbers differ by at most ``tolerance``.

    With ``relative``, ``tolerance`` is a fraction of the expected number.
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
    """Return an evaluator that passes if all of these pass; its value is their mean."""

    def every(scores: list[Score]) -> Score:
        failed = [score for score in scores if not score.passed]
        mean = math.fsum(score.value for score in scores) / len(scores)
        return Score(min(mean, 1.0), not failed, _reasons(failed))

    return _combined(evaluators, every)


def any_of(*evaluators: Callable[..., Any]) -> Judge:
    """Return an evaluator that passes if any of these passes; its value is the highest."""

    def some(scores: list[Score]) -> Score:
        passed = any(score.passed for score in scores)
        best = max(score.value for score in scores)
        return Score(best, passed, None if passed else _reasons(scores))

    return _combined(evaluators, some)


def _combined(
    evaluators: tuple[Callable[..., Any], ...], combine: Callable[[list[Score]], Score]
) -> Judge:
    """Return an evaluator that asks all of these, and combines their scores."""
    if not evaluators:
        raise InvalidParameterError("pass at least one evaluator")
    judges = [as_session_evaluator(evaluator) for evaluator in evaluators]

    def judge(output: Any, expected: Any, session: Session) -> Score:
        return combine([one(output, expected, session) for one in judges])

    async def judge_async(output: Any, expected: Any, session: Session) -> Score:
        found = [one(output, expected, session) for one in judges]
        waiting = [one for one in found if isawaitable(one)]
        answers = iter(await asyncio.gather(*waiting))
        return combine([as_score(next(answers)) if isawaitable(one) else one for one in found])

    return judge_async if any(map(is_async, evaluators)) else judge


def _verdict(passed: bool, reason: str) -> Score:
    return Score(1.0 if passed else 0.0, bool(passed), None if passed else reason)


def _reasons(scores: list[Score]) -> str | None:
    return "; ".join(score.reason for score in scores if score.reason) or None


def _plain(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str | bytes) else msgspec.to_builtins(value)
