"""The declared types of a mailbox, and the sealer that follows from them."""

import typing
from collections.abc import Callable
from typing import Any

from weakincentives.serde import TypeDeclarationError, type_text

from .class_check import ClassCheck, class_check, overlap
from .envelope import Envelope, Sealer
from .errors import InvalidParameterError

__all__ = ["DeclaredTypes"]


class DeclaredTypes:
    """The body and reply type of one mailbox.

    The first of these that declares a type counts: the arguments of the constructor, a subclass
    such as ``class Orders(Box[Order])``, an alias such as ``Box[Order](...)``, the loop that
    serves the mailbox or the annotations of its handler.
    """

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
        self._is_declared = self.body is not None or self.reply is not None
        self.sealer: Sealer
        self.body_check: ClassCheck | None = None
        """What a body is checked by when it is sent; None if every body fits."""
        self.reply_check: ClassCheck | None = None
        self._make()

    def set_alias(self, alias: Any) -> None:
        """Use the types of ``Box[Order, Receipt](...)`` where none is declared yet."""
        self.alias = alias
        try:
            self._set(*_concrete(typing.get_args(alias)))
        except InvalidParameterError as error:
            # typing swallows errors while it sets __orig_class__, so raise this at every use too.
            self.sealer = RefusingSealer(error)
            raise

    def suggest(self, body_type: Any, reply_type: Any) -> None:
        """Use these types if none is declared yet."""
        if not self._is_declared:
            self._set(*_concrete((body_type, reply_type)))

    def adopt(self, body_type: Any, reply_type: Any) -> None:
        """Use the types of a handler's annotations where none is declared; refuse a contradiction.

        A reply type is used only if the mailbox has neither type.
        """
        if not self._is_declared:
            self._set(body_type, reply_type)
        elif self.body is None:
            self._set(body_type, None)
        elif _contradict(self.body, body_type):
            raise InvalidParameterError(
                f"it takes {type_text(body_type)}, but the bodies of this mailbox are "
                f"{type_text(self.body)}"
            )
        elif _contradict(self.reply, reply_type):
            raise InvalidParameterError(
                f"it returns {type_text(reply_type)}, but the replies of this mailbox are "
                f"{type_text(self.reply)}"
            )

    def _set(self, body_type: Any, reply_type: Any) -> None:
        if isinstance(self.sealer, RefusingSealer):
            raise self.sealer.error
        before = self.body, self.reply
        if self.body is None:
            self.body = body_type
        if self.reply is None:
            self.reply = reply_type
        try:
            self._make()
        except InvalidParameterError:
            self.body, self.reply = before
            raise
        self._is_declared = self.body is not None or self.reply is not None

    def _make(self) -> None:
        """Make what follows from the types; raise if one of them cannot be read from JSON."""
        try:
            self._sealer_for(self._any_if_undeclared(self.reply))
            self.sealer = self._sealer_for(self._any_if_undeclared(self.body))
        except TypeDeclarationError as error:
            raise InvalidParameterError(f"body_type or reply_type: {error}") from error
        self.body_check = class_check(self.body, "body_type")
        self.reply_check = class_check(self.reply, "reply_type")

    @staticmethod
    def _any_if_undeclared(declared: Any) -> Any:
        return Any if declared is None or declared is type(None) else declared


class RefusingSealer:
    """Replaces a sealer that could not be made, and raises the reason at every use."""

    def __init__(self, error: InvalidParameterError) -> None:
        self.error = error

    def seal(self, envelope: Envelope) -> Any:
        raise self.error

    def open(self, payload: Any) -> Envelope:
        raise self.error

    def body(self, envelope: Envelope) -> Any:
        raise self.error


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
    body, reply = (None if _is_open(argument) else argument for argument in padded)
    return body, reply


def _contradict(declared: Any, annotated: Any) -> bool:
    nothing = (None, type(None))
    return not (declared in nothing or annotated in nothing or overlap(declared, annotated))


def _is_open(argument: Any) -> bool:
    # Any declares nothing. No isinstance check, because typing_extensions has its own TypeVar.
    return argument is Any or hasattr(argument, "__constraints__")
