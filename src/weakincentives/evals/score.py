"""The score of an output, and how evaluators are called."""

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime import Session

__all__ = ["Evaluator", "Score", "SessionEvaluator", "as_score", "as_session_evaluator"]

OutputT = TypeVar("OutputT", default=Any)
ExpectedT = TypeVar("ExpectedT", default=Any)


@FrozenDataclass()
class Score:
    """How good an output is: a value from 0 to 1, whether it passed, and the reason."""

    value: float
    passed: bool
    reason: str | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if not number or not math.isfinite(self.value) or not 0 <= self.value <= 1:
            raise ValueError(f"a score's value must be from 0 to 1, not {self.value!r:.100}")
        if type(self.passed) is not bool:
            # A number would be sent as JSON, and could not be decoded as a bool.
            raise ValueError(f"a score's passed must be True or False, not {self.passed!r:.100}")
        if self.reason is not None and not isinstance(self.reason, str):
            raise ValueError(f"a score's reason must be text or None, not {self.reason!r:.100}")
        # Number and text types of other libraries cannot be encoded as JSON.
        if type(self.value) is not float:
            object.__setattr__(self, "value", float(self.value))
        if self.reason is not None and type(self.reason) is not str:
            object.__setattr__(self, "reason", str(self.reason))


Evaluator: TypeAlias = Callable[[OutputT, ExpectedT], Score | bool]
"""A function that returns the score of an output, given what was expected; a bool counts too."""

SessionEvaluator: TypeAlias = Callable[[OutputT, ExpectedT, Session], Score | bool]
"""An `Evaluator` that also takes the session, which shows what the request has used."""


def as_session_evaluator(evaluator: Callable[..., Any]) -> Callable[[Any, Any, Session], Any]:
    """Return a function that calls the evaluator, always takes a session and returns a `Score`.

    For an async evaluator it returns an awaitable instead; pass its result to `as_score`.
    """
    takes_session = _takes_session(evaluator)

    def judge(output: Any, expected: Any, session: Session) -> Any:
        arguments = (output, expected, session) if takes_session else (output, expected)
        score = evaluator(*arguments)
        return score if inspect.isawaitable(score) else as_score(score)

    return judge


def as_score(score: object) -> Score:
    """Return what an evaluator has returned as a `Score`."""
    if isinstance(score, bool):
        return Score(float(score), score)
    if not isinstance(score, Score):
        raise TypeError(f"an evaluator must return a Score or a bool, not {score!r:.100}")
    return score


def _takes_session(evaluator: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(evaluator).parameters.values())
    except (TypeError, ValueError):
        return False  # a builtin without a signature: call it with two arguments
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) < 3:
        return False
    third = positional[2]
    # A third parameter with a default is a setting, unless it is called session.
    return third.default is third.empty or third.name == "session"
