"""Adapters turn a prompt into a response, by asking a model's provider or calling a function."""

from collections.abc import Awaitable, Callable
from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction
from typing import TYPE_CHECKING, Any, Generic, Protocol, runtime_checkable

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.prompt import Prompt

from .errors import (
    AuthenticationError,
    ContentPolicyViolation,
    ProviderError,
    QuotaExceededError,
    RateLimitError,
    ResourceNotFoundError,
    VisibilityExpansionRequired,
)

if TYPE_CHECKING:
    from weakincentives.runtime.agent.session import Session
    from weakincentives.runtime.budget import Budget, Deadline

__all__ = [
    "AsyncProviderAdapter",
    "AuthenticationError",
    "CallableAdapter",
    "ContentPolicyViolation",
    "PromptResponse",
    "ProviderAdapter",
    "ProviderError",
    "QuotaExceededError",
    "RateLimitError",
    "ResourceNotFoundError",
    "VisibilityExpansionRequired",
]

OutputT = TypeVar("OutputT")


@FrozenDataclass()
class PromptResponse(Generic[OutputT]):
    """The response to a prompt: its text, and the output parsed from the text."""

    prompt_name: str
    text: str | None = None
    output: OutputT | None = None


@runtime_checkable
class ProviderAdapter(Protocol[OutputT]):
    """Evaluates prompts; ``deadline`` and ``budget`` are what remains for this prompt."""

    def evaluate(
        self,
        prompt: Prompt[Any],
        *,
        session: "Session",
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> PromptResponse[OutputT]:
        """Return the response to ``prompt``, or raise an error."""
        ...


@runtime_checkable
class AsyncProviderAdapter(Protocol[OutputT]):
    """A `ProviderAdapter` for event loops."""

    async def evaluate(
        self,
        prompt: Prompt[Any],
        *,
        session: "Session",
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> PromptResponse[OutputT]:
        """Return the response to ``prompt``, or raise an error."""
        ...


class CallableAdapter(Generic[OutputT]):
    """An adapter that calls ``fn(prompt)``, which returns an output or a `PromptResponse`.

    If the function is async, so is `evaluate`.
    """

    def __init__(
        self,
        fn: Callable[
            [Prompt[Any]],
            OutputT | PromptResponse[OutputT] | Awaitable[OutputT | PromptResponse[OutputT]],
        ],
    ) -> None:
        if not callable(fn):
            raise TypeError(f"CallableAdapter needs a function that takes a prompt, not {fn!r}")
        if isgeneratorfunction(fn) or isasyncgenfunction(fn):
            # Calling it would run nothing, and the job would count as done.
            raise TypeError(
                f"CallableAdapter needs a function that returns its output, and {fn!r} is a "
                "generator"
            )
        self._fn: Callable[[Prompt[Any]], Any] = fn
        if iscoroutinefunction(fn) or iscoroutinefunction(type(fn).__call__):
            self.evaluate = self._evaluate_async  # type: ignore[method-assign, assignment]

    def evaluate(
        self,
        prompt: Prompt[Any],
        *,
        session: "Session",
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> PromptResponse[OutputT]:
        """Call the function and return its output as a response."""
        return _response(prompt, self._fn(prompt))

    async def _evaluate_async(
        self,
        prompt: Prompt[Any],
        *,
        session: "Session",
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> PromptResponse[OutputT]:
        return _response(prompt, await self._fn(prompt))


def _response(prompt: Prompt[Any], output: Any) -> PromptResponse[Any]:
    if isinstance(output, PromptResponse):
        return output
    return PromptResponse(prompt.name, output if isinstance(output, str) else None, output)
