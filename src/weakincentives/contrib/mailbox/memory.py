"""The backend of ``memory://``: queues that live as long as the backend object."""

from typing import Any, Self
from urllib.parse import SplitResult

from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    InMemoryReplyStore,
    InvalidParameterError,
    MailboxClosedError,
    MailboxResolver,
)

__all__ = ["MemoryBackend", "open_backend"]


class MemoryBackend:
    """Mailboxes of one process; the same name is the same mailbox."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, InMemoryMailbox[Any, Any]] = {}
        self._replies: InMemoryReplyStore[Any] = InMemoryReplyStore()
        self._closed = False

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = None,
    ) -> InMemoryMailbox[Any, Any]:
        """Open the mailbox of this name; opened again, it is the same and keeps its options."""
        if self._closed:
            raise MailboxClosedError("the memory:// backend was closed")
        if name not in self._mailboxes:
            made: InMemoryMailbox[Any, Any] = InMemoryMailbox(
                name,
                body_type=body_type,
                reply_type=reply_type,
                reply_resolver=reply_resolver,
                reply_store=self._replies,
                max_size=max_size,
                default_ttl=default_ttl,
            )
            # setdefault, because two threads may ask for the same name at once.
            self._mailboxes.setdefault(name, made)
        return self._mailboxes[name]

    def queues(self) -> list[str]:
        """List the queues known here."""
        return sorted(self._mailboxes)

    def reply_store(self) -> InMemoryReplyStore[Any]:
        """Return the store in which callers of `send_expecting_reply` wait."""
        return self._replies

    def create(self, identifier: str) -> InMemoryMailbox[Any, None]:
        """Open a mailbox that was told no types, as resolvers do."""
        return self.mailbox(identifier)

    def close(self) -> None:
        """Close every mailbox opened here."""
        self._closed = True
        for mailbox in self._mailboxes.values():
            mailbox.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def open_backend(url: str, parts: SplitResult) -> MemoryBackend:
    """Open ``memory://``."""
    if parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidParameterError(f"{url!r}: memory:// takes nothing after it")
    return MemoryBackend()
