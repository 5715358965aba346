"""What an evaluator says of an output, and how evaluators are called."""

import inspect
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.runtime import Session

__all__ = ["Evaluator", "Score", "SessionEvaluator", "judged"]

OutputT = TypeVar("OutputT", default=Any)
ExpectedT = TypeVar("ExpectedT", default=Any)


@FrozenDataclass()
class Score:
    """How good an output is: from 0 to 1, whether that is enough, and why."""

    value: float
    passed: bool
    reason: str | None = None

    def __post_init__(self) -> None:
        number = isinstance(self.value, int | float) and not isinstance(self.value, bool)
        if not number or not math.isfinite(self.value) or not 0 <= self.value <= 1:
            raise ValueError(f"a score's value must be a number from 0 to 1, not {self.value!r}")


Evaluator: TypeAlias = Callable[[OutputT, ExpectedT], Score | bool]
"""From an output and what was expected to a score; True and False are scores too."""

SessionEvaluator: TypeAlias = Callable[[OutputT, ExpectedT, Session], Score | bool]
"""The same, with the session of the run: what it spent and what it used."""


def judged(evaluator: Callable[..., Any]) -> Callable[[Any, Any, Session], Score]:
    """Return an evaluator as it is called here: always with the session, always with a score."""
    takes_session = _takes_session(evaluator)

    def judge(output: Any, expected: Any, session: Session) -> Score:
        arguments = (output, expected, session) if takes_session else (output, expected)
        said = evaluator(*arguments)
        if isinstance(said, bool):
            return Score(float(said), said)
        if not isinstance(said, Score):
            raise TypeError(f"an evaluator must return a Score or a bool, not {said!r:.100}")
        return said

    return judge


def _takes_session(evaluator: Callable[..., Any]) -> bool:
    try:
        parameters = list(inspect.signature(evaluator).parameters.values())
    except (TypeError, ValueError):
        return False  # a builtin that does not tell: it takes the two
    positional = [
        parameter
        for parameter in parameters
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    if len(positional) < 3:
        return False
    third = positional[2]
    # A third parameter with a default of its own is a setting, unless it asks for the session.
    return third.default is third.empty or third.name == "session"
