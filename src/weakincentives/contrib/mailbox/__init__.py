"""Mailboxes on SQLite, Redis and AWS. What a backend needs is imported when it is first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .aws import DynamoDBReplyStore, SQSMailbox, SQSMailboxFactory
    from .redis import RedisMailbox, RedisMailboxFactory, RedisReplyStore
    from .sqlite import SQLiteMailbox, SQLiteMailboxFactory, SQLiteReplyStore

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

_SUBPACKAGES = {
    "DynamoDBReplyStore": "aws",
    "RedisMailbox": "redis",
    "RedisMailboxFactory": "redis",
    "RedisReplyStore": "redis",
    "SQLiteMailbox": "sqlite",
    "SQLiteMailboxFactory": "sqlite",
    "SQLiteReplyStore": "sqlite",
    "SQSMailbox": "aws",
    "SQSMailboxFactory": "aws",
}


def __getattr__(name: str) -> Any:
    subpackage = _SUBPACKAGES.get(name)
    if subpackage is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f".{subpackage}", __name__)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("weakincentives"):
            raise
        raise ImportError(
            f"{name} needs the package {error.name}: pip install 'weakincentives[{subpackage}]'"
        ) from error
    return getattr(module, name)
