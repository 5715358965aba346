"""Finds the loop that ``MODULE:ATTRIBUTE`` names."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from weakincentives.error_text import one_line, with_article
from weakincentives.errors import WinkError
from weakincentives.logs import get_logger
from weakincentives.runtime import InvalidParameterError, Runnable
from weakincentives.runtime.mailbox.seam.backend import Backend

__all__ = ["find", "loop_from"]

logger = get_logger(__name__)


class NoLoopError(WinkError):
    """The loop could not be made."""


def find(target: str) -> Any:
    """Return the object that ``module:attribute`` names."""
    module_name, separator, attribute = target.partition(":")
    if not separator or not module_name or not attribute:
        raise InvalidParameterError(f"{target!r} must be MODULE:ATTRIBUTE, such as jobs:worker")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as if the module were run from here
    with _failures_of(target):
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not module_name.startswith(error.name):
                raise  # something that the module itself imports
            raise InvalidParameterError(f"there is no module {error.name!r} here") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise InvalidParameterError(f"{module_name!r} has no attribute {attribute!r}")
        found = getattr(found, part)
    return found


def loop_from(found: Any, target: str, backend: Backend) -> Runnable:
    """Return the loop that was found; a function is called with the backend."""
    if inspect.isfunction(found):
        with _failures_of(target):
            found = found(backend)
    if not callable(getattr(found, "run", None)) or not callable(getattr(found, "shutdown", None)):
        raise InvalidParameterError(
            f"{target!r} is {with_article(type(found).__name__)}; it must be a loop with run() and "
            f"shutdown(), or a function that takes a backend and returns one"
        )
    return found  # type: ignore[no-any-return]


@contextmanager
def _failures_of(target: str) -> Iterator[None]:
    """Log the traceback of an error in the user's code, and raise a short one."""
    try:
        yield
    except WinkError:
        raise
    except Exception as error:
        logger.exception("%s failed", target)
        raise NoLoopError(f"{target} failed: {one_line(error)}") from error
