import gc
import sys
import time
import weakref

import pytest

from testkit.threads import started_since, threads_now
from weakincentives.runtime.mailbox import InMemoryMailbox
from weakincentives.runtime.mailbox.memory.store import REMEMBER_IDS, InMemoryStore
from weakincentives.runtime.mailbox.seam.store import Outgoing, QueueStats, Store
from weakincentives.runtime.mailbox.testing import FakeClock, driven


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> InMemoryStore:
    return InMemoryStore("x", clock=clock)


class Body:
    """Something that a weak reference can follow."""


def test_it_is_a_store(store: InMemoryStore) -> None:
    seam: Store = store
    assert seam.steps == "inline"


def test_a_thousand_mailboxes_start_not_one_thread() -> None:
    before = threads_now()
    boxes = [InMemoryMailbox[int, int](f"box-{n}") for n in range(1000)]
    for box in boxes:
        box.send(1)
        reply = box.send_expecting_reply(2)
        first, second = box.receive(max_messages=2, visibility_timeout=30)
        first.acknowledge()
        second.reply(3)
        assert reply.wait(timeout=120) == 3
        assert box.receive(wait_time_seconds=0.000001) == []
    assert not started_since(before)


def test_the_heap_does_not_outgrow_its_messages(store: InMemoryStore) -> None:
    """A worker that acknowledges out of order leaves items behind that must be swept up."""
    store.put_now([Outgoing("first", 0)])
    (held,) = store.lease_now(1, 1000).messages  # the oldest lease: no later one is on top
    for n in range(5000):
        store.put_now([Outgoing(f"{n}", n)])
        (leased,) = store.lease_now(1, 2000).messages
        assert store.acknowledge_now([leased.handle]) == [True]
    assert len(store._due) < 300
    assert store.acknowledge_now([held.handle]) == [True]


def test_nor_when_one_lease_is_extended_for_ever(store: InMemoryStore, clock: FakeClock) -> None:
    store.put_now([Outgoing("a", 0)])
    (held,) = store.lease_now(1, 300).messages
    for _ in range(5000):
        clock.advance(0.01)
        assert driven(store.extend([held.handle], 300)) == [True]
    assert len(store._due) < 300
    clock.advance(299)
    assert store.lease_now(1, 30).messages == ()
    clock.advance(2)
    (again,) = store.lease_now(1, 30).messages
    assert (again.id, again.delivery_count) == ("a", 2)


def test_compaction_keeps_what_waits(store: InMemoryStore, clock: FakeClock) -> None:
    store.put_now([Outgoing(f"late-{n}", n, delay=50.0 + n) for n in range(10)])
    store.put_now([Outgoing(f"held-{n}", n) for n in range(10)])
    held = store.lease_now(10, 100).messages
    for n in range(1000):
        store.put_now([Outgoing(f"{n}", n)])
        store.acknowledge_now([store.lease_now(1, 1000).messages[0].handle])
    assert driven(store.stats())[:3] == (0, 10, 10)
    clock.advance(59.5)
    assert [seen.id for seen in driven(store.peek(20))] == [f"late-{n}" for n in range(10)]
    clock.advance(40.5)
    assert driven(store.stats())[:3] == (20, 0, 0)
    assert store.acknowledge_now([leased.handle for leased in held]) == [False] * 10


def test_an_acknowledged_body_is_not_kept(store: InMemoryStore) -> None:
    bodies = [Body(), Body()]
    gone = weakref.ref(bodies[1])
    store.put_now([Outgoing("a", bodies[0]), Outgoing("b", bodies[1])])
    first, second = store.lease_now(2, 3600).messages
    store.acknowledge_now([second.handle])
    del bodies[1], second
    gc.collect()
    assert gone() is None
    assert store.acknowledge_now([first.handle]) == [True]


def test_a_purged_body_is_not_kept(store: InMemoryStore) -> None:
    body = Body()
    gone = weakref.ref(body)
    store.put_now([Outgoing("a", body), Outgoing("b", 1, delay=5)])
    store.lease_now(1, 3600)
    assert driven(store.purge()) == 2
    del body
    gc.collect()
    assert gone() is None
    assert driven(store.stats()) == QueueStats(0, 0, 0, None)


def test_a_known_id_costs_the_same_however_many_there_are(
    store: InMemoryStore, clock: FakeClock
) -> None:
    def thousand_sends(prefix: str) -> float:
        started = time.process_time()
        for n in range(1000):
            store.put_now([Outgoing(f"{prefix}-{n}", n, given=True)])
        return time.process_time() - started

    few = min(thousand_sends(f"warm-{n}") for n in range(3))
    store.put_now([Outgoing(f"many-{n}", n, given=True) for n in range(100_000)])
    many = min(thousand_sends(f"late-{n}") for n in range(3))
    assert many < 20 * few + 0.05  # it was a thousand times
    driven(store.purge())
    clock.advance(REMEMBER_IDS)
    store.put_now([Outgoing("last", 0, given=True)])
    assert list(store._known_ids) == ["last"]


def test_a_known_id_is_forgotten_after_five_minutes(store: InMemoryStore, clock: FakeClock) -> None:
    store.put_now([Outgoing("a", 1, given=True)])
    store.acknowledge_now([store.lease_now(1, 30).messages[0].handle])
    clock.advance(REMEMBER_IDS - 1)
    store.put_now([Outgoing("a", 2, given=True)])
    assert driven(store.stats()).pending == 0
    clock.advance(1)
    store.put_now([Outgoing("a", 3, given=True)])
    assert store.lease_now(1, 30).messages[0].payload == 3


def test_the_next_due_time_is_told_with_an_empty_look(
    store: InMemoryStore, clock: FakeClock
) -> None:
    assert store.lease_now(1, 30).next_due is None
    store.put_now([Outgoing("late", 0, delay=5), Outgoing("now", 0)])
    (held,) = store.lease_now(1, 3).messages
    assert store.lease_now(1, 30).next_due == 3
    store.acknowledge_now([held.handle])
    assert store.lease_now(1, 30).next_due == 5
    clock.advance(5)
    assert store.lease_now(1, 30).messages[0].id == "late"


def test_expired_and_dropped_are_counted(clock: FakeClock) -> None:
    store = InMemoryStore("x", retention=100, clock=clock)
    store.put_now([Outgoing("a", 0), Outgoing("b", 0), Outgoing("c", 0, delay=60)])
    store.lease_now(2, 10)
    clock.advance(10)
    leases = store.lease_now(1, 200)
    assert ([leased.id for leased in leases.messages], leases.expired) == (["a"], 2)
    clock.advance(91)
    leases = store.lease_now(2, 10)
    assert (leases.messages, leases.dropped) == ((), 2)


def test_many_messages_that_are_too_old_are_dropped_in_one_look(clock: FakeClock) -> None:
    store = InMemoryStore("x", retention=10, clock=clock)
    store.put_now([Outgoing(f"old-{n}", n) for n in range(30_000)])
    clock.advance(60)
    store.put_now([Outgoing("young", 1)])
    started = time.thread_time()
    found = store.lease_now(1, 30)
    assert time.thread_time() - started < 5
    assert ([message.id for message in found.messages], found.dropped) == (["young"], 30_000)
    assert driven(store.stats()) == QueueStats(0, 1, 0, None)


def test_what_is_too_old_behind_younger_messages_is_dropped_too(clock: FakeClock) -> None:
    store = InMemoryStore("x", retention=10, clock=clock)
    store.put_now([Outgoing("old", 1)])
    (held,) = store.lease_now(1, 60).messages
    clock.advance(9)
    store.put_now([Outgoing("young", 1), Outgoing("younger", 1)])
    driven(store.release([held.handle], 0))
    store.put_now([Outgoing("youngest", 1)])
    clock.advance(2)
    found = store.lease_now(3, 30)
    assert [message.id for message in found.messages] == ["young", "younger", "youngest"]
    assert found.dropped == 1


def test_leasing_by_id_takes_only_what_waits(store: InMemoryStore) -> None:
    store.put_now([Outgoing(id, id) for id in "abcd"])
    store.lease_now(1, 30)
    leases = store.lease_now(10, 30, ids=["d", "b", "a", "zzz"])
    assert [leased.id for leased in leases.messages] == ["b", "d"]
    assert [seen.id for seen in driven(store.peek(10))] == ["c"]


def test_settling_and_leasing_are_one_step(store: InMemoryStore) -> None:
    store.put_now([Outgoing(id, id) for id in "ab"])
    (first,) = store.lease_now(1, 30).messages
    leases = store.lease_now(5, 30, acknowledge=[first.handle, "nonsense", first.handle])
    assert leases.acknowledged == [True, False, False]
    assert [leased.id for leased in leases.messages] == ["b"]


def test_a_message_takes_little_room() -> None:
    store = InMemoryStore("x")
    store.put_now([Outgoing("a", 0)])
    assert sys.getsizeof(store._entries["a"]) < 200
