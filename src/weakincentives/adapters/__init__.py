"""What turns a prompt into a response: a model's provider, or any function."""

from collections.abc import Callable
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
    from weakincentives.runtime.deadline import Budget, Deadline
    from weakincentives.runtime.session import Session

__all__ = [
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
    """What came of a prompt: the text, and the output that was read from it."""

    prompt_name: str
    text: str | None = None
    output: OutputT | None = None


@runtime_checkable
class ProviderAdapter(Protocol[OutputT]):
    """Evaluates a prompt; ``deadline`` and ``budget`` are what is left for it."""

    def evaluate(
        self,
        prompt: Prompt[Any],
        *,
        session: "Session",
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> PromptResponse[OutputT]:
        """Return the response, or raise."""
        ...


class CallableAdapter(Generic[OutputT]):
    """An adapter around a function from a prompt to an output, or to a whole `PromptResponse`."""

    def __init__(self, fn: Callable[[Prompt[Any]], OutputT | PromptResponse[OutputT]]) -> None:
        if not callable(fn):
            raise TypeError(f"CallableAdapter takes a function of a prompt, not {fn!r}")
        if iscoroutinefunction(fn) or isgeneratorfunction(fn) or isasyncgenfunction(fn):
            # Called, it would only promise an output, and the job would count as done.
            raise TypeError(
                f"CallableAdapter takes a function that returns its output, and {fn!r} is async "
                f"or a generator; wrap it, for instance as lambda prompt: asyncio.run(fn(prompt))"
            )
        self._fn = fn

    def evaluate(
        self,
        prompt: Prompt[Any],
        *,
        session: "Session",
        deadline: "Deadline | None" = None,
        budget: "Budget | None" = None,
    ) -> PromptResponse[OutputT]:
        """Call the function."""
        output = self._fn(prompt)
        if isinstance(output, PromptResponse):
            return output
        text = output if isinstance(output, str) else None
        return PromptResponse(prompt.name, text, output)
