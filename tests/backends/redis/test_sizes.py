"""A batch is bounded in bytes: on the way in, on the way out, and for a look."""

from typing import Any

import pytest

from testkit import redis_clients as clients
from testkit.servers import Standalone
from weakincentives.contrib.mailbox.contract.driver import Driver, Face, Proxy
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.runtime.mailbox import PayloadTooLargeError
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]

MEGABYTE = "x" * 1_000_000


@pytest.mark.parametrize("face", ["sync", "async"])
def test_large_messages_come_in_batches_of_some_megabytes(server: Standalone, face: Face) -> None:
    driver = Driver(face)
    client = clients.standalone(server, awaited=face == "async")
    box: Any = Proxy(Box("box", client), driver)
    for number in range(40):
        box.send(f"{number}{MEGABYTE}")
    assert 1 <= len(box.peek(40)) <= 8
    seen = []
    rounds = 0
    while messages := box.receive(max_messages=40):
        rounds += 1
        assert sum(len(message.body) for message in messages) <= 8 * 1024 * 1024
        seen += [int(message.body[: -len(MEGABYTE)]) for message in messages]
        box.acknowledge_batch(messages)
    assert seen == list(range(40))
    assert rounds == 5
    assert box.approximate_count() == 0
    if face == "async":
        driver.run(clients.close(client))
    driver.close()


def test_what_was_left_wakes_the_next_consumer(server: Standalone, box: Box) -> None:
    box.send_batch([MEGABYTE] * 10)
    first = box.receive(max_messages=10, wait_time_seconds=5)
    assert len(first) == 8
    server.command("CONFIG", "RESETSTAT")
    assert len(box.receive(max_messages=10, wait_time_seconds=20)) == 2


def test_small_messages_are_not_held_back(box: Box) -> None:
    box.send_batch(["small"] * 1000)
    assert len(box.receive(max_messages=1000)) == 1000


def test_a_message_among_large_ones_can_be_leased_by_id(box: Box) -> None:
    ids = [box.send(f"{number}{MEGABYTE}") for number in range(12)]
    leased = driven(box.store.lease(12, 30.0, ids=ids)).messages
    assert [message.id for message in leased] == ids[:8]
    assert box.stats().pending == 4
    assert [m.id for m in driven(box.store.lease(12, 30.0, ids=ids)).messages] == ids[8:]


def test_a_batch_that_is_too_large_is_not_sent_at_all(box: Box) -> None:
    refused = r"^70 messages.*none of these was sent, send fewer"
    with pytest.raises(PayloadTooLargeError, match=refused):
        box.send_batch([MEGABYTE] * 70)
    assert box.approximate_count() == 0
    box.send_batch([MEGABYTE] * 60)
    assert box.approximate_count() == 60


def test_more_can_be_settled_at_once_than_received(box: Box) -> None:
    sent = box.send_batch(list(range(9000)))
    held = [one for _ in range(9) for one in box.receive(max_messages=1000)]
    assert box.extend_batch(held, 60) == [True] * 9000
    assert box.release_batch(held) == [True] * 9000
    held = [one for _ in range(9) for one in box.receive(max_messages=1000)]
    assert [message.id for message in held] == sent, "undone, they stand where they stood"
    assert box.acknowledge_batch([*held[:100], *held]) == [True] * 9100
    box.send_batch(list(range(9000)))
    held = [one for _ in range(9) for one in box.receive(max_messages=1000)]
    assert box.exchange(held) == []
    assert all(message.is_finalized for message in held)
    assert box.approximate_count() == 0
