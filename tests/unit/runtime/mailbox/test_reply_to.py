"""Replies to a mailbox go there however the steps of either mailbox are taken."""

import asyncio
from typing import Any

import pytest

from tests.contract.shelf import AwaitedStore, BlockingReplies, BlockingStore, Shelf
from weakincentives.runtime.mailbox import RegistryResolver
from weakincentives.runtime.mailbox.memory.store import InMemoryStore

STORES = [InMemoryStore, BlockingStore, AwaitedStore]


@pytest.mark.parametrize("answers_are", STORES)
@pytest.mark.parametrize("questions_are", STORES)
def test_an_event_loop_replies_to_any_mailbox(questions_are: Any, answers_are: Any) -> None:
    answers = Shelf(answers_are).mailbox("answers")
    shelf = Shelf(questions_are, BlockingReplies)
    box = shelf.mailbox("questions", reply_resolver=RegistryResolver({"answers": answers}))

    async def main() -> tuple[str, str, str]:
        await box.send_async("question", reply_to=answers)
        (message,) = await box.receive_async()
        id = await message.reply_async("answer")
        (answer,) = await answers.receive_async()
        return id, answer.id, answer.body

    id, received, body = asyncio.run(main())
    assert (id, body) == (received, "answer")
