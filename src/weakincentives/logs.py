"""Loggers that make logged values safe: no forged lines, no huge ones, no secrets."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from .error_text import MAX_TEXT, one_line, printable, stack_of

__all__ = ["SafeLogger", "get_logger"]


def get_logger(name: str) -> "SafeLogger":
    """Return the safe logger of the module ``name``."""
    return SafeLogger(logging.getLogger(name))


class SafeLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that makes every argument safe before it is formatted.

    An error becomes one redacted, bounded line; control characters in text become escapes. For
    ``exc_info``, the record gets a redacted traceback as text instead of the error itself, because
    formatting a hostile error could use any amount of memory and show any secret.
    """

    def log(
        self,
        level: int,
        msg: object,
        *args: object,
        exc_info: Any = None,
        stack_info: bool = False,
        stacklevel: int = 1,
        extra: Mapping[str, object] | None = None,
        **_unused: object,
    ) -> None:
        """Log one line, followed by the traceback of ``exc_info`` if there is one."""
        logger = self.logger
        if not logger.isEnabledFor(level):
            return
        # One frame more than usual, for this function.
        place = logger.findCaller(stack_info, stacklevel + 1)
        safe = tuple(map(_safe, args))
        fields = {name: _safe(value) for name, value in (extra or {}).items()}
        file, line, function, stack = place
        record = logger.makeRecord(
            logger.name, level, file, line, msg, safe, None, function, fields, stack
        )
        error = _error_of(exc_info)
        if error is not None:
            # Formatters use this text instead of formatting the error.
            record.exc_text = stack_of(error)
        logger.handle(record)

    def event(
        self, level: int, name: str, fields: Mapping[str, object], *, exc_info: Any = None
    ) -> None:
        """Log an event with its fields, both in the text and as attributes of the record.

        The attribute ``event`` is the bare name, for those who search.
        """
        shown = "".join(f" {key}=%s" for key, value in fields.items() if value is not None)
        values = [value for value in fields.values() if value is not None]
        extra = {"event": name, **fields}
        self.log(level, name + shown, *values, exc_info=exc_info, stacklevel=2, extra=extra)


def _error_of(exc_info: Any) -> BaseException | None:
    found = exc_info[1] if isinstance(exc_info, tuple) else exc_info
    if found is True:
        found = sys.exc_info()[1]
    return found if isinstance(found, BaseException) else None


def _safe(value: object) -> object:
    """Return a value that is safe to format: a number, or bounded and printable text."""
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, BaseException):
        return one_line(value)
    try:
        text = str(value)
    except Exception:  # noqa: BLE001 - logging must not break the code that logs
        text = f"({type(value).__name__} that cannot be shown)"
    # Not text[:limit], because a subclass of str may override __getitem__.
    return printable(str.__getitem__(text, slice(2 * MAX_TEXT)))
