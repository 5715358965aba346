"""Mailboxes and replies on Redis or Valkey."""

from .mailbox import RedisMailbox, RedisMailboxFactory
from .replies import RedisReplyStore

__all__ = ["RedisMailbox", "RedisMailboxFactory", "RedisReplyStore"]
