"""The root of every error that weakincentives raises on purpose."""

__all__ = ["WinkError"]


class WinkError(Exception):
    """Base class of all errors of this package; its docstring is the default message."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message if message is not None else (type(self).__doc__ or "").strip())
