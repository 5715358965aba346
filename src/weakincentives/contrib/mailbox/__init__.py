"""Mailboxes on SQLite, Redis and AWS. What a backend needs is imported when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .redis import RedisMailbox, RedisMailboxFactory, RedisReplyStore
    from .sqlite import SQLiteMailbox, SQLiteMailboxFactory, SQLiteReplyStore
    from .sqs import DynamoDBReplyStore, SQSMailbox, SQSMailboxFactory

__all__ = [
    "DynamoDBReplyStore",
    "RedisMailbox",
    "RedisMailboxFactory",
    "RedisReplyStore",
    "SQLiteMailbox",
    "SQLiteMailboxFactory",
    "SQLiteReplyStore",
    "SQSMailbox",
    "SQSMailboxFactory",
]

_HOMES = {
    "DynamoDBReplyStore": ("sqs", "aws"),
    "RedisMailbox": ("redis", "redis"),
    "RedisMailboxFactory": ("redis", "redis"),
    "RedisReplyStore": ("redis", "redis"),
    "SQLiteMailbox": ("sqlite", "sqlite"),
    "SQLiteMailboxFactory": ("sqlite", "sqlite"),
    "SQLiteReplyStore": ("sqlite", "sqlite"),
    "SQSMailbox": ("sqs", "aws"),
    "SQSMailboxFactory": ("sqs", "aws"),
}
"""The subpackage of each name, and the extra that installs what it needs."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    subpackage, extra = _HOMES[name]
    try:
        module = importlib.import_module(f".{subpackage}", __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("weakincentives"):
            raise
        raise ImportError(
            f"{name} needs the package {error.name}: pip install 'weakincentives[{extra}]'"
        ) from error
    return getattr(module, name)
