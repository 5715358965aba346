"""Mailboxes in a SQLite file."""

import os
from typing import Any, Generic, Self

from typing_extensions import TypeVar

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.queue_names import check_name
from weakincentives.runtime.mailbox.resolver import MailboxResolver
from weakincentives.runtime.mailbox.seam.options import DEFAULT_TTL, QueueOptions
from weakincentives.runtime.mailbox.seam.reply_table import ReplyStore

from .database import Database
from .registry import shared_database
from .replies import SQLiteReplyStore
from .store import SQLiteStore

__all__ = ["SQLiteMailbox", "SQLiteMailboxFactory"]

T = TypeVar("T")
R = TypeVar("R", default=None)

KEPT_MAILBOXES = 256


class SQLiteMailbox(StoreMailbox[T, R], Generic[T, R]):
    """A durable `Mailbox` in a file, shared by all processes of one machine.

    With ``durability="full"`` a message that was sent survives a power failure; with ``"normal"``
    it survives the death of any process. Without a ``reply_resolver`` it finds other mailboxes in
    its own file; without a ``reply_store`` it uses the one there. ``max_bytes`` is the size of the
    largest message (default: 1 MiB); senders, workers and callers who wait for replies should use
    the same value.
    """

    def __init__(
        self,
        name: str,
        path: str | os.PathLike[str] | Database,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        reply_store: ReplyStore[Any] | None = None,
        max_size: int | None = None,
        default_ttl: float | None = DEFAULT_TTL,
        max_bytes: int | None = None,
        reaper_interval: float = 1.0,
        durability: str = "full",
        dispatcher: Dispatcher | None = None,
    ) -> None:
        options = QueueOptions(
            *(body_type, reply_type, reply_resolver, reply_store, dispatcher),
            max_size=max_size,
            default_ttl=default_ttl,
            max_bytes=max_bytes,
            reaper_interval=reaper_interval,
        )
        self._set_up(name, path, options, durability)

    @classmethod
    def _opened(cls, name: str, database: Database, options: QueueOptions) -> Self:
        """Make a mailbox from options that have been checked."""
        mailbox = cls.__new__(cls)
        mailbox._set_up(name, database, options)
        return mailbox

    def _set_up(
        self,
        name: str,
        path: str | os.PathLike[str] | Database,
        options: QueueOptions,
        durability: str = "full",
    ) -> None:
        name = check_name(name)
        database = path if isinstance(path, Database) else shared_database(path, durability)
        store = SQLiteStore(
            database,
            name,
            max_size=options.max_size,
            retention=options.default_ttl,
            look_interval=options.reaper_interval,
        )
        store.limits = options.limits
        factory = SQLiteMailboxFactory(database, max_bytes=options.max_bytes)
        options = options.with_defaults(factory, SQLiteReplyStore(database))
        super().__init__(store, options.json_sealer, options)


class SQLiteMailboxFactory:
    """Makes the mailboxes of one file, and reuses those that it has made."""

    def __init__(
        self,
        path: str | os.PathLike[str] | Database,
        durability: str = "full",
        *,
        max_bytes: int | None = None,
    ) -> None:
        self._max_bytes = max_bytes
        self._database = path if isinstance(path, Database) else shared_database(path, durability)
        self._mailboxes: dict[str, SQLiteMailbox[Any, None]] = {}

    def create(self, identifier: str) -> SQLiteMailbox[Any, None]:
        """Return the mailbox of this name."""
        mailbox = self._mailboxes.get(identifier)
        if mailbox is None or mailbox.closed:
            # Names come from senders: a stream of new ones must not fill the memory.
            if len(self._mailboxes) >= KEPT_MAILBOXES:
                self._mailboxes.clear()
            mailbox = self._mailboxes[identifier] = SQLiteMailbox(
                identifier, self._database, max_bytes=self._max_bytes
            )
        return mailbox
