"""What is asked of a provider."""

from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.errors import WinkError

__all__ = ["Prompt", "ValidationError"]

OutputT = TypeVar("OutputT", default=Any)


class ValidationError(WinkError, ValueError):
    """The request cannot be made into a prompt."""


@FrozenDataclass()
class Prompt(Generic[OutputT]):
    """A prompt: its name, its text, the type of output it asks for, and what it is about."""

    name: str
    text: str = ""
    output_type: type[OutputT] | None = None
    params: Any = None
