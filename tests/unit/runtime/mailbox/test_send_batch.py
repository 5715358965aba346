"""Batches with ids of the sender's own."""

import asyncio

import pytest

from weakincentives.runtime.mailbox import InMemoryMailbox, InvalidParameterError


def test_a_batch_that_is_sent_again_is_the_same_messages() -> None:
    box = InMemoryMailbox[str]("jobs")
    assert box.send_batch(["a", "b"], message_ids=["1", "2"]) == ["1", "2"]
    assert box.send_batch(["b", "c"], message_ids=["2", "3"]) == ["2", "3"]
    asyncio.run(box.send_batch_async(["c", "d"], message_ids=["3", "4"]))
    assert [message.body for message in box.receive(max_messages=10)] == ["a", "b", "c", "d"]


@pytest.mark.parametrize("ids", [[], ["1"], ["1", "2", "3"], ["1", "no spaces"]])
def test_there_is_one_good_id_for_each_body(ids: list[str]) -> None:
    box = InMemoryMailbox[str]("jobs")
    with pytest.raises(InvalidParameterError, match="message_id"):
        box.send_batch(["a", "b"], message_ids=ids)
    assert box.approximate_count() == 0
