"""Resolvers: they find the mailbox that a message names for its replies."""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Generic, Protocol, runtime_checkable

from typing_extensions import TypeVar

from .api import Mailbox
from .errors import InvalidParameterError, MailboxError, MailboxResolutionError

__all__ = ["CompositeResolver", "MailboxFactory", "MailboxResolver", "RegistryResolver"]


R = TypeVar("R", default=Any)
R_co = TypeVar("R_co", default=Any, covariant=True)


@runtime_checkable
class MailboxResolver(Protocol[R_co]):
    """Finds a mailbox by its name."""

    def resolve(self, identifier: str) -> Mailbox[Any, None]:
        """Return the mailbox; raise `MailboxResolutionError` if there is none."""
        ...

    def resolve_optional(self, identifier: str) -> Mailbox[Any, None] | None:
        """Return the mailbox, or None."""
        ...


@runtime_checkable
class MailboxFactory(Protocol[R_co]):
    """Opens a mailbox by its name."""

    def create(self, identifier: str) -> Mailbox[Any, None]:
        """Return a mailbox of this name."""
        ...


class CompositeResolver(Generic[R]):
    """Looks into a registry first, then asks a factory; ``R`` is the type of the replies.

    The sender of a message chooses the name. ``allow`` limits the names that the factory may open:
    a list of names or shell-style patterns; None allows all.
    """

    def __init__(
        self,
        registry: Mapping[str, Mailbox[Any, None]] | None = None,
        factory: MailboxFactory | None = None,
        allow: Iterable[str] | None = None,
    ) -> None:
        if isinstance(allow, str):
            raise InvalidParameterError(f"allow must be a list of names, not the text {allow!r}")
        self._registry = registry if registry is not None else {}
        self._factory = factory
        self._allow = None if allow is None else tuple(allow)

    def resolve(self, identifier: str) -> Mailbox[Any, None]:
        """Return the mailbox; raise `MailboxResolutionError` if there is none."""
        known = self._registry.get(identifier)
        if known is not None:
            return known
        if self._factory is None:
            raise MailboxResolutionError(identifier)
        if self._allow is not None and not any(fnmatchcase(identifier, p) for p in self._allow):
            raise MailboxResolutionError(
                identifier, f"replies to {identifier!r} are not allowed here (see allow=)"
            )
        try:
            return self._factory.create(identifier)
        except Exception as error:
            # The factory may raise anything, because the sender of the message chose the name.
            raise MailboxResolutionError(
                identifier, f"no mailbox can be made for {identifier!r}: {_description(error)}"
            ) from error

    def resolve_optional(self, identifier: str) -> Mailbox[Any, None] | None:
        """Return the mailbox, or None."""
        try:
            return self.resolve(identifier)
        except MailboxResolutionError:
            return None


def _description(error: Exception) -> str:
    return str(error) if isinstance(error, MailboxError) else f"{type(error).__name__}: {error}"


class RegistryResolver(CompositeResolver[R], Generic[R]):
    """Finds only the mailboxes that it was given."""

    def __init__(self, registry: Mapping[str, Mailbox[Any, None]]) -> None:
        super().__init__(registry)
