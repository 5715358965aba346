"""Finds out how to call a handler, with or without the job, and whether it has run."""

from collections.abc import Callable
from functools import partial
from inspect import Parameter, Signature, signature
from types import AsyncGeneratorType, GeneratorType
from typing import Any

from weakincentives.runtime.mailbox import InvalidParameterError

__all__ = ["check_has_run", "with_job"]

POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
LAZY = (GeneratorType, AsyncGeneratorType)


def with_job(handler: Callable[..., Any]) -> Callable[[Any, Any], Any] | None:
    """Return a function of a body and a job; None if the handler takes only the body.

    A handler gets the job if it has a second positional parameter without a default, or one
    called ``job``.
    """
    known = _signature(handler)
    if known is None:
        return None
    positional = [one for one in known.parameters.values() if one.kind in POSITIONAL]
    if len(positional) > 1 and positional[1].default is Parameter.empty:
        _check(handler, known, (None, None), {})
        return handler
    # Not the first one: that is the body, whatever it is called.
    if "job" in known.parameters and known.parameters["job"] not in positional[:1]:
        _check(handler, known, (None,), {"job": None})
        return lambda body, job: handler(body, job=job)
    _check(handler, known, (None,), {})
    return None


def _signature(handler: Callable[..., Any]) -> Signature | None:
    """Return the signature of a handler, None if Python does not know it."""
    try:
        own = signature(handler, follow_wrapped=False)
        takes_anything = any(
            one.kind is Parameter.VAR_POSITIONAL for one in own.parameters.values()
        )
        # A decorator that passes on whatever it gets passes on the job too.
        found = signature(handler) if takes_anything else own
    except (TypeError, ValueError):  # such as a builtin
        return None
    bound = handler.keywords if isinstance(handler, partial) else {}
    return found.replace(
        parameters=[one for name, one in found.parameters.items() if name not in bound]
    )


def _check(
    handler: object, known: Signature, arguments: tuple[None, ...], named: dict[str, None]
) -> None:
    try:
        known.bind(*arguments, **named)
    except TypeError as error:
        raise InvalidParameterError(
            f"handler must be a function of a body, or of a body and a job; "
            f"{handler!r:.100} cannot be called like that: {error}"
        ) from error


def check_has_run(result: object) -> None:
    """Raise if what a handler returned is code that nobody runs."""
    if type(result) in LAZY:
        raise TypeError("the handler returned a generator, so none of its code has run")
