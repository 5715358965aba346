"""Remembers which received message a send answers or dead-letters."""

from contextvars import ContextVar, Token
from typing import Any

__all__ = ["CAUSE", "caused_by"]

CAUSE: ContextVar[Any] = ContextVar("cause", default=None)
"""The message that is being answered or dead-lettered, in this thread or task."""


class caused_by:  # noqa: N801 - it reads as the statement that it is
    """What is sent inside of ``with caused_by(message):`` is sent because of that message."""

    # Not a generator with @contextmanager: that costs several times as much.
    __slots__ = ("_message", "_token")

    def __init__(self, message: Any) -> None:
        self._message = message
        self._token: Token[Any] | None = None

    def __enter__(self) -> None:
        self._token = CAUSE.set(self._message)

    def __exit__(self, *exc: object) -> None:
        if self._token is not None:
            CAUSE.reset(self._token)
