"""Which names a queue may have."""

import re

from .errors import InvalidParameterError

__all__ = ["NAME", "check_name", "is_name"]

NAME = re.compile(r"[A-Za-z0-9_.:-]{1,80}", re.ASCII)


def check_name(value: object, name: str = "name") -> str:
    """Check the name of a queue before it reaches a key, a path or a URL."""
    if not isinstance(value, str) or not is_name(value):
        raise InvalidParameterError(
            f"{name} must be 1 to 80 characters of A-Z a-z 0-9 _ . : -, not {value!r:.100}"
        )
    return str.__str__(value)  # plain text even if it is a subclass, such as an enum


def is_name(text: str) -> bool:
    """Return whether a queue can have this name."""
    return NAME.fullmatch(text) is not None
