"""The backend of ``memory://``: queues that live as long as the backend object."""

from typing import Any
from urllib.parse import SplitResult

from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    InMemoryMailboxFactory,
    InMemoryReplyStore,
    InvalidParameterError,
)
from weakincentives.runtime.mailbox.seam.backend import BaseBackend
from weakincentives.runtime.mailbox.seam.options import QueueOptions

from .pauses import InMemoryPauseTable
from .workers import InMemoryWorkerTable

__all__ = ["MemoryBackend", "open_backend"]


class MemoryBackend(BaseBackend[InMemoryMailbox[Any, Any], InMemoryReplyStore[Any]]):
    """Mailboxes of one process; the same name is the same queue.

    While a mailbox is open, its name leads to it again and it keeps its options; types may be
    declared later if it has none. Closed and opened again, it is a new one on the same queue, which
    keeps its own ``max_size`` and ``default_ttl``.
    """

    def __init__(self) -> None:
        super().__init__("memory://", InMemoryReplyStore())
        self._factory = InMemoryMailboxFactory()

    def queues(self) -> list[str]:
        """List the queues that were opened here."""
        return sorted(self._factory._mailboxes)

    def _worker_table(self) -> InMemoryWorkerTable:
        return self._factory._workers

    def _pause_table(self) -> InMemoryPauseTable:
        return self._factory._pauses

    def _open(self, name: str, options: QueueOptions) -> InMemoryMailbox[Any, Any]:
        return self._factory._open(name, options)


def open_backend(url: str, parts: SplitResult) -> MemoryBackend:
    """Open ``memory://``."""
    if parts.netloc or parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidParameterError(f"{url!r}: memory:// takes nothing after it")
    return MemoryBackend()
