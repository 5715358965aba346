"""Errors that name the options that were typed, not the parameters behind them."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from weakincentives.runtime.mailbox import InvalidParameterError

__all__ = ["named_as_typed"]


@contextmanager
def named_as_typed(flags: Mapping[str, str]) -> Iterator[None]:
    """Put the flag in place of its parameter in an error about it."""
    try:
        yield
    except InvalidParameterError as error:
        text = str(error)
        parameter = text.partition(" ")[0]
        if parameter not in flags:
            raise
        for name, flag in flags.items():
            # Once each: what follows may be what the user typed.
            text = re.sub(rf"\b{name}\b", flag, text, count=1)
        raise InvalidParameterError(text) from error
