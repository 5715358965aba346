"""A user may ask an object whether it is one of ours."""

from typing import Any

import pytest

from weakincentives import Backend, connect
from weakincentives.adapters import CallableAdapter, ProviderAdapter
from weakincentives.runtime import (
    CollectingMailbox,
    CompositeResolver,
    Dispatcher,
    FakeMailbox,
    ImmediateReply,
    InMemoryMailbox,
    InMemoryMailboxFactory,
    InMemoryReplyStore,
    InProcessDispatcher,
    Mailbox,
    MailboxFactory,
    MailboxResolver,
    NullMailbox,
    Reply,
    ReplyStore,
    Runnable,
    SQLiteMailbox,
    Worker,
)

INSTANCES = [
    (InMemoryMailbox("orders"), Mailbox),
    (NullMailbox(), Mailbox),
    (CollectingMailbox(), Mailbox),
    (FakeMailbox(), Mailbox),
    (InMemoryMailbox("orders").send_expecting_reply("tea"), Reply),
    (ImmediateReply(1), Reply),
    (InMemoryReplyStore(), ReplyStore),
    (InMemoryMailboxFactory(), MailboxFactory),
    (connect("memory://"), MailboxFactory),
    (connect("memory://"), Backend),
    (CompositeResolver(), MailboxResolver),
    (InProcessDispatcher(), Dispatcher),
    (Worker(InMemoryMailbox("orders"), print), Runnable),
    (CallableAdapter(str), ProviderAdapter),
]


@pytest.mark.parametrize(("thing", "kind"), INSTANCES)
def test_what_is_ours_says_so(thing: Any, kind: Any) -> None:
    assert isinstance(thing, kind)
    assert not isinstance(object(), kind)


def test_a_mailbox_on_a_file_is_one_too(tmp_path) -> None:
    with SQLiteMailbox("orders", tmp_path / "orders.db") as mailbox:
        assert isinstance(mailbox, Mailbox)
