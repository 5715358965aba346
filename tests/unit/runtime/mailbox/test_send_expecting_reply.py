"""What becomes of the reply if its message could not be sent."""

import asyncio
from collections.abc import Sequence

import pytest

from tests.contract.shelf import AwaitedReplies, AwaitedStore, Shelf
from weakincentives.runtime.mailbox import MailboxConnectionError, MailboxFullError
from weakincentives.runtime.mailbox.seam.store import Outgoing


class HangingStore(AwaitedStore):
    async def put(self, messages: Sequence[Outgoing]) -> None:
        await asyncio.Event().wait()


class FullStore(AwaitedStore):
    async def put(self, messages: Sequence[Outgoing]) -> None:
        raise MailboxFullError("no room")


class UnreachableReplies(AwaitedReplies):
    async def delete(self, id: str) -> bool:
        raise MailboxConnectionError("no success within 15 s")


def test_a_timeout_is_a_timeout_though_the_server_is_gone() -> None:
    async def main() -> None:
        async with asyncio.timeout(0.05):
            await (
                Shelf(HangingStore, UnreachableReplies)
                .mailbox("box")
                .send_expecting_reply_async("question")
            )

    with pytest.raises(TimeoutError):
        asyncio.run(main())


def test_the_error_says_why_the_message_could_not_be_sent() -> None:
    box = Shelf(FullStore, UnreachableReplies).mailbox("box")
    with pytest.raises(MailboxFullError):
        asyncio.run(box.send_expecting_reply_async("question"))


def test_no_reply_is_left_behind() -> None:
    shelf = Shelf(FullStore, AwaitedReplies)
    with pytest.raises(MailboxFullError):
        asyncio.run(shelf.mailbox("box").send_expecting_reply_async("question"))
    assert not shelf.table._entries
