"""The in-memory backend, in each of the ways in which a backend can take its steps."""

from typing import Any

from weakincentives.contrib.mailbox.contract import MailboxContract, ReplyStoreContract
from weakincentives.runtime.mailbox import InMemoryMailbox, InMemoryReplyStore


class TestInMemory(MailboxContract):
    def make_mailbox(self, name: str, **options: Any) -> InMemoryMailbox[Any, Any]:
        return InMemoryMailbox(name, **options)

    def open_again(self, mailbox: Any, **options: Any) -> InMemoryMailbox[Any, Any]:
        return on_the_same_queue(mailbox, InMemoryMailbox(mailbox.name, **options))


class TestInMemorySerialized(MailboxContract):
    def make_mailbox(self, name: str, **options: Any) -> InMemoryMailbox[Any, Any]:
        return InMemoryMailbox(name, serialize=True, **options)

    def open_again(self, mailbox: Any, **options: Any) -> InMemoryMailbox[Any, Any]:
        return on_the_same_queue(mailbox, InMemoryMailbox(mailbox.name, serialize=True, **options))


class TestInMemoryReplyStore(ReplyStoreContract):
    def make_reply_store(self) -> InMemoryReplyStore[Any]:
        return InMemoryReplyStore()


def on_the_same_queue(
    first: InMemoryMailbox[Any, Any], second: InMemoryMailbox[Any, Any]
) -> InMemoryMailbox[Any, Any]:
    """Memory is not shared by name: hand the queue and the replies over."""
    second.store = first.store
    second._reply_table = first._reply_table
    return second
