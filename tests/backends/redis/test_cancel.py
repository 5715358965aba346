"""Cancelling on Redis: deep queues, lost answers, and messages whose record was not found."""

from typing import Any

import pytest

from testkit.proxy import Proxy
from testkit.servers import Standalone
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]

DEEP = 25_000
"""More than one call looks through."""


@pytest.mark.parametrize("place", [0, 12_345, DEEP - 1])
@pytest.mark.parametrize("delay", [0, 600])
def test_a_message_in_a_deep_queue_is_found(
    box: Box, server: Standalone, place: int, delay: float
) -> None:
    ids: list[str] = []
    for _ in range(DEEP // 1000):
        ids += box.send_batch(list(range(1000)))
    if delay:
        # As if they had been sent with a delay, which only single messages have.
        with server.client() as raw:
            records = raw.lrange("{queue:box}:pending", 0, -1)
            raw.delete("{queue:box}:pending")
            for at in range(0, DEEP, 1000):
                scores = dict.fromkeys(records[at : at + 1000], 1e15 + at)
                raw.zadd("{queue:box}:delayed", scores)
    assert box.cancel(ids[place])
    stats = box.stats()
    assert (stats.pending, stats.delayed) == ((0, DEEP - 1) if delay else (DEEP - 1, 0))
    assert server.command("HLEN", "{queue:box}:data") == DEEP - 1
    assert not box.cancel(ids[place])


def test_no_step_of_a_cancel_reads_a_whole_deep_queue(box: Box, server: Standalone) -> None:
    for _ in range(DEEP // 1000):
        box.send_batch(list(range(1000)))
    first = box.receive()[0]  # the far end: cancelling looks from the other one
    first.nack()
    (id,) = (message.id for message in box.peek(limit=1))
    server.command("CONFIG", "RESETSTAT")
    assert box.cancel(id)
    stats = server.info("commandstats")
    calls = sum(
        int(value.split(",")[0].removeprefix("calls="))
        for name, value in stats.items()
        if name in ("cmdstat_eval", "cmdstat_evalsha")
    )
    assert calls >= DEEP // 10_000
    assert box.stats().pending == DEEP - 1


def test_what_was_not_found_is_dropped_when_it_would_be_leased(box: Box) -> None:
    """Whoever cancels may die between the steps that look for the record."""
    ids = box.send_batch(list(range(DEEP)))
    queue, client = box.store.queue, box.store.client
    begin, payload = driven(client.call(queue.slot, queue.cancel([ids[0]]))).answer
    assert begin > 0
    assert payload
    assert [message.id for message in box.receive(max_messages=2)] == ids[1:3]
    stats = box.stats()
    assert (stats.pending, stats.in_flight, stats.unreadable) == (DEEP - 3, 2, 0)


def test_a_cancelled_message_is_not_shown(box: Box) -> None:
    ids = box.send_batch(list(range(DEEP)))
    queue, client = box.store.queue, box.store.client
    driven(client.call(queue.slot, queue.cancel([ids[0]])))
    assert [message.id for message in box.peek(limit=2)] == [ids[1]]


def test_a_cancel_whose_answer_is_lost_still_tells(far: Box, proxy: Proxy, box: Box) -> None:
    leased, waiting = far.send("leased"), far.send("waiting")
    (message,) = box.receive()
    for id in (waiting, leased):
        proxy.lose_answer(b":taken:")
        assert far.cancel(id) is True
        assert far.cancel(id) is False
    assert proxy.lost == 2
    assert message.acknowledge()
    assert box.approximate_count() == 0


def test_a_cancel_leaves_nothing_behind(box: Box, server: Standalone) -> None:
    id = box.send("job")
    assert box.cancel(id)
    (taken,) = server.command("KEYS", "{queue:box}:taken:*")
    assert 0 < int(server.command("PTTL", taken)) <= 60_000
    assert {*server.command("KEYS", "*")} == {taken, "{queue:box}:wake"}


def test_a_cancelled_message_can_be_acknowledged_with_the_next_lease(box: Box) -> None:
    id = box.send("job")
    (message,) = box.receive()
    assert box.cancel(id)
    assert box.exchange([message]) == []
    assert message.is_finalized
    assert box.approximate_count() == 0


def test_cancelled_leases_that_ran_out_are_not_counted(box: Box, server: Standalone) -> None:
    ids = box.send_batch([1, 2, 3])
    messages = box.receive(max_messages=3)
    assert box.cancel(ids[1])
    with server.client() as raw:
        for message in messages:
            raw.zadd("{queue:box}:invisible", {message.receipt_handle: 1000})
    assert box.stats().pending == 2
    assert driven(box.store.lease_states([m.receipt_handle for m in messages])) == ["ended"] * 3
    assert sorted(message.body for message in box.receive(max_messages=5)) == [1, 3]
    assert box.stats().unreadable == 0
    assert server.command("HLEN", "{queue:box}:data") == 2
