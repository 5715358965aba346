"""The filters that choose messages and dead letters on the command line."""

from typing import Annotated

import typer

from weakincentives.runtime.dead_letters.filters import OF_LETTERS, OF_MESSAGES

__all__ = ["LetterFilters", "MessageFilters"]

MessageFilters = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILTER]...", help=f"Only those that match all of: {OF_MESSAGES}"),
]
LetterFilters = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILTER]...", help=f"Only those that match all of: {OF_LETTERS}"),
]
