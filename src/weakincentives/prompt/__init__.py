"""The prompt that an adapter sends to a model's provider."""

from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.errors import WinkError

__all__ = ["Prompt", "ValidationError"]

OutputT = TypeVar("OutputT", default=Any)


class ValidationError(WinkError, ValueError):
    """The request cannot be turned into a prompt."""


@FrozenDataclass()
class Prompt(Generic[OutputT]):
    """A prompt: its name, its text, the type of its output, and its parameters."""

    name: str
    text: str = ""
    output_type: type[OutputT] | None = None
    params: Any = None
