"""The backend of ``sqlite:///file.db``."""

import threading
import weakref
from typing import Any, Self
from urllib.parse import SplitResult, parse_qsl, unquote

from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.resolver import MailboxResolver

from .database import Database
from .mailbox import SQLiteMailbox
from .queries import load_queries
from .registry import open_database
from .replies import SQLiteReplyStore

__all__ = ["SQLiteBackend", "open_backend"]


class SQLiteBackend:
    """The queues of one file; `close` closes the file."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._replies: SQLiteReplyStore[Any] = SQLiteReplyStore(database)
        self._lock = threading.Lock()
        self._mailboxes: weakref.WeakSet[SQLiteMailbox[Any, Any]] = weakref.WeakSet()

    def mailbox(
        self,
        name: str,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        max_size: int | None = None,
        default_ttl: float | None = None,
    ) -> SQLiteMailbox[Any, Any]:
        """Open the mailbox of this name; the queue comes into being by its first message."""
        self._database.check_open()
        mailbox: SQLiteMailbox[Any, Any] = SQLiteMailbox(
            name,
            self._database,
            body_type=body_type,
            reply_type=reply_type,
            reply_resolver=reply_resolver,
            reply_store=self._replies,
            max_size=max_size,
            default_ttl=default_ttl,
        )
        with self._lock:
            self._mailboxes.add(mailbox)
        return mailbox

    def queues(self) -> list[str]:
        """List the queues of the file."""
        return [name for (name,) in self._database.read(load_queries()["queues"])]

    def reply_store(self) -> SQLiteReplyStore[Any]:
        """Return the store in which callers of `send_expecting_reply` wait."""
        return self._replies

    def create(self, identifier: str) -> SQLiteMailbox[Any, None]:
        """Open a mailbox that was told no types, as resolvers do."""
        return self.mailbox(identifier)

    def close(self) -> None:
        """Close every mailbox opened here, then the file."""
        with self._lock:
            mailboxes = list(self._mailboxes)
        for mailbox in mailboxes:
            mailbox.close()
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<SQLiteBackend {self._database.path!r}>"


def open_backend(url: str, parts: SplitResult) -> SQLiteBackend:
    """Open ``sqlite:///relative.db`` or ``sqlite:////absolute.db``, with ``?durability=normal``."""
    if parts.netloc or not parts.path.startswith("/"):
        raise InvalidParameterError(
            f"{url!r}: write sqlite:///file.db for a file in the working directory, "
            "sqlite:////directory/file.db for any other"
        )
    path = unquote(parts.path[1:])
    if not path or "\0" in path:
        raise InvalidParameterError(f"{url!r} names no file; write sqlite:///file.db")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    durability = options.pop("durability", "full")
    if options or parts.fragment:
        raise InvalidParameterError(
            f"{url!r}: the only option is durability=full or durability=normal "
            "(a ? or # in the name of a file is written %3F or %23)"
        )
    return SQLiteBackend(open_database(path, durability))
