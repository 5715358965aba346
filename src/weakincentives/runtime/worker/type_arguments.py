"""Finds the type arguments of a generic loop, such as those of ``Loop[Order, Receipt](...)``."""

import typing
from typing import Any

__all__ = ["BoundByAlias", "arguments_of", "bind"]


class BoundByAlias:
    """A loop that binds its mailboxes as soon as ``Loop[Order, Receipt](...)`` is made.

    typing says which alias made an instance only after ``__init__``, by setting ``__orig_class__``.
    """

    _alias: Any = None

    @property
    def __orig_class__(self) -> Any:
        """The alias this loop was made through, or None."""
        return self._alias

    @__orig_class__.setter
    def __orig_class__(self, alias: Any) -> None:
        self._alias = alias
        self._bind()

    def _bind(self) -> None:
        """Declare the types that this loop was given for its mailboxes."""
        raise NotImplementedError


def arguments_of(instance: object, generic: type) -> tuple[Any, ...]:
    """Return the arguments of ``generic`` that ``instance`` fixes; Any for what it leaves open."""
    wanted = len(getattr(generic, "__parameters__", ()))
    alias = getattr(instance, "__orig_class__", None)
    found = _resolve(alias if alias is not None else type(instance), generic)
    arguments = (*(found or ()), *(Any,) * wanted)[:wanted]
    return tuple(Any if _is_open(argument) else argument for argument in arguments)


def bind(mailbox: object, body_type: Any, reply_type: Any) -> None:
    """Declare the types of a mailbox that accepts them and has none."""
    suggest = getattr(mailbox, "_bind", None)
    if suggest is not None:
        suggest(body_type, reply_type)


def _resolve(declared: Any, generic: type) -> tuple[Any, ...] | None:
    origin = typing.get_origin(declared) or declared
    given = typing.get_args(declared)
    if origin is generic:
        return given
    known = dict(zip(getattr(origin, "__parameters__", ()), given, strict=False))
    for base in getattr(origin, "__orig_bases__", ()):
        base_origin = typing.get_origin(base) or base
        if isinstance(base_origin, type) and issubclass(base_origin, generic):
            found = _resolve(base, generic)
            if found is not None:
                return tuple(_substituted(argument, known) for argument in found)
    for base in getattr(origin, "__bases__", ()):
        # A class whose bases are plain has no __orig_bases__ of its own, but may inherit some.
        if issubclass(base, generic) and base is not origin:
            found = _resolve(base, generic)
            if found is not None:
                return found
    return None


def _substituted(argument: Any, known: dict[Any, Any]) -> Any:
    if _is_open(argument):
        return known.get(argument, argument)
    parameters = getattr(argument, "__parameters__", ())
    if parameters and not isinstance(argument, type):
        return argument[tuple(known.get(parameter, Any) for parameter in parameters)]
    return argument


def _is_open(argument: Any) -> bool:
    return hasattr(argument, "__constraints__")
