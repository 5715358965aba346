"""Which types a mailbox was told, by whom, and the sealer that follows from it."""

import typing
from collections.abc import Callable
from typing import Any

from weakincentives.serde import TypeDeclarationError

from .envelope import Envelope, Sealer
from .errors import InvalidParameterError

__all__ = ["DeclaredTypes"]


class DeclaredTypes:
    """Body and reply type of one mailbox; what was said first and most explicitly holds."""

    def __init__(
        self,
        mailbox_class: type,
        body_type: Any,
        reply_type: Any,
        sealer_for: Callable[[Any], Sealer],
    ) -> None:
        self._sealer_for = sealer_for
        self.alias: Any = None
        by_class = _class_arguments(mailbox_class)
        self.body = body_type if body_type is not None else by_class[0]
        self.reply = reply_type if reply_type is not None else by_class[1]
        self._told = self.body is not None or self.reply is not None
        self.sealer: Sealer = self._make()

    def told_by(self, alias: Any) -> None:
        """Take the types from ``Box[Order, Receipt](...)`` where nothing else was said."""
        self.alias = alias
        self._set(*_concrete(typing.get_args(alias)))

    def suggest(self, body_type: Any, reply_type: Any) -> None:
        """Take these types if the mailbox was told nothing."""
        if not self._told:
            self._set(*_concrete((body_type, reply_type)))

    def _set(self, body_type: Any, reply_type: Any) -> None:
        if self.body is None:
            self.body = body_type
        if self.reply is None:
            self.reply = reply_type
        self._told = self.body is not None or self.reply is not None
        try:
            self.sealer = self._make()
        except InvalidParameterError as error:
            # typing swallows what is raised while it sets __orig_class__: say it again at use.
            self.sealer = RefusingSealer(error)
            raise

    def _make(self) -> Sealer:
        try:
            self._sealer_for(self._any_if_untold(self.reply))
            return self._sealer_for(self._any_if_untold(self.body))
        except TypeDeclarationError as error:
            raise InvalidParameterError(f"body_type or reply_type: {error}") from error

    @staticmethod
    def _any_if_untold(declared: Any) -> Any:
        return Any if declared is None or declared is type(None) else declared


class RefusingSealer:
    """Stands where no sealer could be made, and says why at every use."""

    def __init__(self, error: InvalidParameterError) -> None:
        self._error = error

    def seal(self, envelope: Envelope) -> Any:
        raise self._error

    def open(self, payload: Any) -> Envelope:
        raise self._error

    def body(self, envelope: Envelope) -> Any:
        raise self._error


def _class_arguments(cls: type) -> tuple[Any, Any]:
    """Return the type arguments that a subclass fixed, as in ``class Orders(Box[Order])``."""
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            arguments = _concrete(typing.get_args(generic))
            if typing.get_origin(generic) is not typing.Generic and arguments != (None, None):
                return arguments
    return None, None


def _concrete(arguments: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return body and reply type, None for what is missing or only a type variable."""
    padded = (*arguments, None, None)[:2]
    body, reply = (None if _open(argument) else argument for argument in padded)
    return body, reply


def _open(argument: Any) -> bool:
    # Any says as much as nothing; typing_extensions has TypeVars of its own.
    return argument is Any or hasattr(argument, "__constraints__")
