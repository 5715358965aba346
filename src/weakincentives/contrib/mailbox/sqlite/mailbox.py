"""Mailboxes in a SQLite file."""

import os
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.mailbox.envelope import JsonSealer, Sealer
from weakincentives.runtime.mailbox.limits import check_name, check_positive
from weakincentives.runtime.mailbox.memory import check_max_size
from weakincentives.runtime.mailbox.reply_table import ReplyStore
from weakincentives.runtime.mailbox.resolver import CompositeResolver, MailboxResolver
from weakincentives.runtime.mailbox.typed import MailboxOptions, StoreMailbox
from weakincentives.serde import Codec

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
    it survives the death of any process. Told no ``reply_resolver`` it finds other mailboxes in
    its own file; told no ``reply_store`` it uses the one there.
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
        default_ttl: float | None = None,
        reaper_interval: float = 1.0,
        durability: str = "full",
        dispatcher: Dispatcher | None = None,
    ) -> None:
        check_name(name)
        check_max_size(max_size)
        retention = None if default_ttl is None else check_positive("default_ttl", default_ttl)
        look_interval = check_positive("reaper_interval", reaper_interval)
        database = path if isinstance(path, Database) else shared_database(path, durability)
        store = SQLiteStore(
            database, name, max_size=max_size, retention=retention, look_interval=look_interval
        )

        def sealer_for(declared: Any) -> Sealer:
            return JsonSealer(Codec(declared), store.limits.max_bytes)

        options = MailboxOptions(
            body_type,
            reply_type,
            reply_resolver or CompositeResolver(factory=SQLiteMailboxFactory(database)),
            reply_store if reply_store is not None else SQLiteReplyStore(database),
            dispatcher,
        )
        super().__init__(store, sealer_for, options)


class SQLiteMailboxFactory:
    """Makes the mailboxes of one file; one that was made is kept for the next who asks."""

    def __init__(self, path: str | os.PathLike[str] | Database, durability: str = "full") -> None:
        self._database = path if isinstance(path, Database) else shared_database(path, durability)
        self._mailboxes: dict[str, SQLiteMailbox[Any, None]] = {}

    def create(self, identifier: str) -> SQLiteMailbox[Any, None]:
        """Return the mailbox of this name."""
        mailbox = self._mailboxes.get(identifier)
        if mailbox is None or mailbox.closed:
            # Names come from senders: a stream of new ones must not fill the memory.
            if len(self._mailboxes) >= KEPT_MAILBOXES:
                self._mailboxes.clear()
            mailbox = self._mailboxes[identifier] = SQLiteMailbox(identifier, self._database)
        return mailbox
