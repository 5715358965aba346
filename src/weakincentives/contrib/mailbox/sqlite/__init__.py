"""Mailboxes in a SQLite file: durable, many processes, no server."""

from .mailbox import SQLiteMailbox, SQLiteMailboxFactory
from .replies import SQLiteReplyStore
from .store import SQLiteStore

__all__ = ["SQLiteMailbox", "SQLiteMailboxFactory", "SQLiteReplyStore", "SQLiteStore"]
