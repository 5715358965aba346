"""The annotations of a handler declare the types of a mailbox that has none."""

import functools
import inspect
import operator
import sys
import types
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import msgspec

from weakincentives.error_text import one_line
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.class_check import members_of
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.serde import Codec, is_model

__all__ = ["adopt_annotations"]

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def adopt_annotations(
    mailbox: object, handler: Callable[..., Any], error_reply: Callable[..., Any] | None
) -> None:
    """Declare the types in a handler's annotations for a mailbox; raise if they contradict it."""
    if not isinstance(mailbox, StoreMailbox):
        return
    try:
        body_type = _body_annotation(handler)
    except Exception as error:
        if mailbox.body_type is not None:
            return
        raise InvalidParameterError(
            f"the annotation of {_name(handler)} cannot be resolved, so nothing declares what the "
            f"bodies are: {one_line(error)}; pass body_type= to the mailbox {mailbox.name!r}"
        ) from error
    if _declares_nothing(body_type):
        return
    try:
        mailbox._types.adopt(body_type, _reply_annotation(handler, error_reply))
    except InvalidParameterError as error:
        raise InvalidParameterError(
            f"{_name(handler)} cannot serve {mailbox.name!r}: {error}; "
            f"correct its annotation, or pass body_type= to the mailbox"
        ) from error


def _body_annotation(handler: Callable[..., Any]) -> Any:
    """Return the annotation of the first parameter, Any if there is none."""
    signature = _signature_of(handler)
    for parameter in signature.parameters.values() if signature is not None else ():
        if parameter.kind in POSITIONAL:
            return _resolved(parameter.annotation, handler)
        break
    return Any


def _reply_annotation(handler: Callable[..., Any], error_reply: Callable[..., Any] | None) -> Any:
    """Return the type of all replies, None if the annotations do not give it."""
    made_by = [handler] if error_reply is None else [handler, error_reply]
    try:
        returned = [_return_annotation(maker) for maker in made_by]
        if any(_declares_nothing(annotation) for annotation in returned):
            return None
        declared: Any = functools.reduce(operator.or_, returned)
        Codec(declared)
    except Exception:  # noqa: BLE001 - replies are written here and not read: it can do without
        return None
    return declared


def _return_annotation(maker: Callable[..., Any]) -> Any:
    """Return the annotation of the result, Any if there is none."""
    signature = _signature_of(maker)
    annotation = Any if signature is None else _resolved(signature.return_annotation, maker)
    if typing.get_origin(annotation) in (Awaitable, Coroutine):
        return typing.get_args(annotation)[-1]
    return annotation


def _signature_of(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return None


def _resolved(annotation: Any, function: Callable[..., Any]) -> Any:
    """Return an annotation as a type, even if it is a string or contains one."""
    if annotation is inspect.Signature.empty:
        return Any
    plain = _plain_function(function)
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    module = sys.modules.get(getattr(plain, "__module__", None) or "")
    names = getattr(plain, "__globals__", None) or vars(module or types)
    parameters = {one.__name__: one for one in getattr(plain, "__type_params__", ())}
    return typing.get_type_hints(holder, names, parameters, include_extras=True)["it"]


def _plain_function(function: Any) -> Any:
    """Return the function, or the class, in whose module the annotations were written."""
    while True:
        if isinstance(function, functools.partial):
            function = function.func
        elif hasattr(function, "__wrapped__"):
            function = function.__wrapped__
        elif isinstance(function, types.MethodType):
            function = function.__func__
        elif isinstance(function, type | types.FunctionType) or not hasattr(
            type(function).__call__, "__globals__"
        ):
            return function
        else:
            function = type(function).__call__


def _declares_nothing(annotation: Any) -> bool:
    """Return whether an annotation names no type that values could be read as."""
    is_open = bool(getattr(annotation, "__parameters__", ())) and not isinstance(annotation, type)
    return is_open or annotation is type(None) or not _is_readable(annotation)


def _is_readable(annotation: Any) -> bool:
    """Return whether JSON can be read as a type; a model's own fields are not looked at."""
    members = members_of(annotation)
    return members is not None and all(
        _is_readable_class(member.cls)
        and all(one in (Any, ...) or _is_readable(one) for one in member.arguments)
        for member in members
    )


def _is_readable_class(cls: type) -> bool:
    try:
        custom = isinstance(msgspec.inspect.type_info(cls), msgspec.inspect.CustomType)
    except Exception:  # noqa: BLE001 - it cannot be declared at all, and is refused with a reason
        return True
    return not custom or is_model(cls)


def _name(handler: object) -> str:
    return getattr(handler, "__qualname__", None) or type(handler).__qualname__
