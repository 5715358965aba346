"""A place where queues live, reached by a URL."""

from typing import Any, Protocol, Self, runtime_checkable

from .api import Mailbox
from .reply_table import ReplyStore
from .resolver import MailboxResolver

__all__ = ["Backend"]


@runtime_checkable
class Backend(Protocol):
    """Opens mailboxes and a reply store in one place; also a `MailboxFactory`."""

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = None,
    ) -> Mailbox[Any, Any]:
        """Open the mailbox of this name; queues come into being by their first message."""
        ...

    def queues(self) -> list[str]:
        """List the queues that hold messages, or are known here."""
        ...

    def reply_store(self) -> ReplyStore[Any]:
        """Return the store in which callers of `send_expecting_reply` wait."""
        ...

    def create(self, identifier: str) -> Mailbox[Any, None]:
        """Open a mailbox that was told no types, as resolvers do."""
        ...

    def close(self) -> None:
        """Close every mailbox opened here and let go of files and connections."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: Any) -> None: ...
