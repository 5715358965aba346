"""Corners of the scripts that a mailbox seldom reaches."""

from typing import Any

import pytest

from testkit.servers import Standalone
from tests.backends.redis.seeds import let_pass
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis.store import RedisStore
from weakincentives.runtime.mailbox import MailboxFullError
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]


def fill(store: RedisStore, count: int, **options: Any) -> list[str]:
    ids = [f"m{number:05}" for number in range(count)]
    for start in range(0, count, 1000):
        driven(
            store.put([Outgoing(id, id.encode(), **options) for id in ids[start : start + 1000]])
        )
    return ids


def test_leasing_by_id_finds_them_wherever_they_stand(box: Box) -> None:
    store = box.store
    ids = fill(store, 3500)
    wanted = [ids[3400], ids[5], ids[1000], "unknown", ids[5]]
    found = driven(store.lease(10, 60, ids=wanted)).messages
    assert [m.id for m in found] == [ids[5], ids[1000], ids[3400]]
    assert [m.payload.decode() for m in found] == [m.id for m in found]
    assert driven(store.lease(10, 60, ids=wanted)).messages == []
    assert driven(store.lease(10, 60, ids=[])).messages == []
    assert driven(store.stats())[:3] == (3497, 3, 0)
    assert all(driven(store.acknowledge([m.handle for m in found])))
    assert [m.id for m in driven(store.lease(7, 60)).messages] == [*ids[:5], ids[6], ids[7]]


def test_peeking_pages_through_what_waits_and_what_is_due(box: Box, server: Standalone) -> None:
    store = box.store
    ids = fill(store, 5)
    driven(store.put([Outgoing("later", b"later", delay=60)]))
    held = driven(store.lease(2, 0.05)).messages
    driven(store.put([Outgoing("soon", b"soon", delay=0.05)]))
    let_pass(server, 0.1)
    seen = [s.id for offset in range(0, 8, 2) for s in driven(store.peek(2, offset))]
    assert seen == [*ids[2:], *(m.id for m in held), "soon"]
    assert driven(store.stats())[:3] == (6, 0, 1)
    (again,) = (s for s in driven(store.peek(10)) if s.id == held[0].id)
    assert (again.delivery_count, again.nack_count) == (1, 0)


def test_what_is_too_old_is_dropped_at_the_look(client: Any, server: Standalone) -> None:
    box = Box("box", client, default_ttl=0.2)
    ids = fill(box.store, 250)
    (held,) = driven(box.store.lease(1, 60)).messages
    let_pass(server, 0.3)
    driven(box.store.put([Outgoing("fresh", b"fresh")]))
    driven(box.store.release([held.handle], 0))
    leases = driven(box.store.lease(5, 60))
    assert [m.id for m in leases.messages] == ["fresh"]
    assert leases.dropped == len(ids)
    assert server.command("HLEN", "{queue:box}:data") == 1
    box.close()


def test_a_batch_fits_whole_or_not_at_all(client: Any) -> None:
    box = Box("box", client, max_size=5)
    fill(box.store, 3)
    with pytest.raises(MailboxFullError, match="holds 3 of at most 5"):
        driven(box.store.put([Outgoing(f"n{n}", b"") for n in range(3)]))
    assert box.approximate_count() == 3
    # What is known needs no room.
    driven(box.store.put([Outgoing(id, b"", given=True) for id in ("m00000", "n1", "n2")]))
    assert box.approximate_count() == 5
    box.close()


def test_the_same_id_twice_in_a_batch_is_one_message(box: Box) -> None:
    driven(
        box.store.put([Outgoing("one", payload, given=True) for payload in (b"first", b"second")])
    )
    assert [m.payload for m in driven(box.store.lease(5, 60)).messages] == [b"first"]


def test_settling_nothing_is_no_error(box: Box) -> None:
    assert list(driven(box.store.acknowledge([]))) == []
    assert list(driven(box.store.release([], 0))) == []
    assert list(driven(box.store.extend([], 30))) == []
    assert box.extend_batch([], 30) == []


def test_mixed_delays_and_chosen_ids_in_one_batch(box: Box) -> None:
    store = box.store
    driven(store.put([Outgoing("a", b"", 60), Outgoing("b", b"", 0, True), Outgoing("c", b"")]))
    assert driven(store.stats())[:3] == (2, 0, 1)
    (b, c) = driven(store.lease(5, 60)).messages
    assert all(driven(store.acknowledge([b.handle, c.handle])))
    driven(store.put([Outgoing("b", b"", 0, True), Outgoing("c", b"")]))
    # The sender chose "b", so it is remembered; "c" is a new message under an old id.
    assert [m.id for m in driven(store.lease(5, 60)).messages] == ["c"]


def test_a_message_without_data_is_no_message(box: Box, server: Standalone) -> None:
    """Should somebody tamper with the data, what is left of it comes to nobody."""
    fill(box.store, 2)
    server.command("HDEL", "{queue:box}:data", "m00000")
    assert [m.id for m in driven(box.store.lease(5, 60)).messages] == ["m00001"]
    assert driven(box.store.stats()).pending == 0


def test_the_oldest_of_all_that_wait(box: Box, server: Standalone) -> None:
    store = box.store
    driven(store.put([Outgoing("old", b"")]))
    (old,) = driven(store.lease(1, 60)).messages
    let_pass(server, 0.3)
    fill(store, 1500)
    driven(store.release([old.handle], 0))
    age = driven(store.stats()).oldest_age
    assert age is not None
    assert age >= 0.3
    assert box.purge() == 1501
    assert driven(store.stats()) == (0, 0, 0, None, 0, False)


@pytest.mark.parametrize("settled", ["resolve", "cancel"])
def test_a_reply_rings_for_as_long_as_it_can_be_read(
    box: Box, server: Standalone, settled: str
) -> None:
    """Or else one who begins to wait after that waits for the next look, some seconds later."""
    reply = box.send_expecting_reply("question", reply_timeout=3600)
    if settled == "resolve":
        box.receive()[0].reply("answer")
    else:
        reply.cancel()
    lasts = {
        key.split(":")[2]: server.command("PTTL", key) for key in server.command("KEYS", "{rep*")
    }
    assert lasts["bell"] >= lasts["entry"] - 1000
