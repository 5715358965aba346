"""Dead letters that are looked after, and sent again."""

import threading
from collections import Counter
from dataclasses import replace

import pytest

from testkit.waiting import eventually
from tests.contract.shelf import Shelf
from tests.loops.helpers import in_background
from tests.loops.letters import Order, boom, fill, run, the_letter
from weakincentives import connect
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.runtime import (
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    InProcessDispatcher,
    InvalidParameterError,
    RegistryResolver,
    UnsupportedOperationError,
    Worker,
    replay_dead_letters,
)
from weakincentives.runtime.events import DeadLetterReplayed
from weakincentives.runtime.leases import walk
from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven


@pytest.fixture
def box(shelf):
    return shelf("orders", body_type=Order)


# --- DLQConsumer ----------------------------------------------------------------------------


def test_a_consumer_handles_letters(box, letters):
    fill(box, letters, "tea", "milk")
    seen = []
    consumer = DLQConsumer(mailbox=letters, handler=seen.append)
    with in_background(consumer):
        eventually(lambda: letters.stats().total == 0)
        assert consumer.running
        assert consumer.heartbeat.elapsed() < 60
    assert [letter.message_id for letter in seen]
    assert [letter.body for letter in seen] == [Order("tea"), Order("milk")]


def test_a_consumer_that_fails_keeps_the_letter_for_an_hour(caplog):
    letters = FakeMailbox("dead")
    fill(InMemoryMailbox("orders"), letters, "tea")
    DLQConsumer(mailbox=letters, handler=lambda letter: 1 / 0).run(
        max_iterations=1, wait_time_seconds=0
    )
    assert "DLQ handler failed" in caplog.text
    letters.advance(3599)
    assert letters.stats().delayed == 1
    letters.advance(1)
    assert letters.stats().pending == 1


def test_a_consumer_reads_letters_of_its_type(box, letters):
    letters = Shelf().mailbox("dead")
    fill(InMemoryMailbox("orders"), letters, "tea")
    letters = reopened(letters)
    seen = []
    DLQConsumer[Order](mailbox=letters, handler=seen.append).run(
        max_iterations=1, wait_time_seconds=0
    )
    assert seen[0].body == Order("tea")


def reopened(mailbox):
    """The same queue, opened by somebody who was told nothing."""
    other = Shelf().mailbox(mailbox.name)
    other._use(mailbox.store)
    return other


# --- replay ---------------------------------------------------------------------------------


def waiting(box):
    return [peeked.body for peeked in box.peek(100)]


def test_letters_are_sent_again(box, letters):
    fill(box, letters, "tea", "milk")
    assert replay_dead_letters(letters, box) == 2
    assert waiting(box) == [Order("tea"), Order("milk")]
    assert letters.stats().total == 0


def test_replayed_messages_keep_their_attributes_and_get_an_id_of_their_own(box, letters):
    id = box.send(Order("tea"), attributes={"tenant": "x"}, message_id="order-1")
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    replay_dead_letters(letters, box)
    (message,) = box.receive()
    assert message.id != id
    assert message.attributes == {"tenant": "x"}
    assert message.delivery_count == 1


def test_what_does_not_match_stays_where_it_was(box, letters):
    fill(box, letters, "a", "b", "c", "d")
    before = [(p.id, p.delivery_count, p.nack_count) for p in letters.peek()]
    count = replay_dead_letters(letters, box, predicate=lambda letter: letter.body.item in "bd")
    assert count == 2
    assert waiting(box) == [Order("b"), Order("d")]
    after = [(p.id, p.delivery_count, p.nack_count) for p in letters.peek()]
    assert after == [before[0], before[2]]


def test_limit_dry_run_and_progress(box, letters):
    fill(box, letters, "a", "b", "c")
    assert replay_dead_letters(letters, box, dry_run=True) == 3
    assert replay_dead_letters(letters, box, dry_run=True, limit=2) == 2
    assert replay_dead_letters(letters, box, limit=0) == 0
    assert letters.stats().pending == 3
    told = []
    progress = lambda count, letter: told.append((count, letter.body.item))  # noqa: E731
    assert replay_dead_letters(letters, box, limit=2, progress=progress) == 2
    assert told == [(1, "a"), (2, "b")]
    assert letters.stats().pending == 1


@pytest.mark.parametrize("limit", [-1, 1.5, True, "2"])
def test_a_limit_of_nonsense_is_refused(box, letters, limit):
    fill(box, letters, "a")
    with pytest.raises(InvalidParameterError, match="limit"):
        replay_dead_letters(letters, box, limit=limit)
    assert letters.stats().pending == 1


def test_letters_are_not_replayed_into_their_own_queue(box, letters):
    fill(box, letters, "a")
    with pytest.raises(InvalidParameterError, match="evidence"):
        replay_dead_letters(letters, letters)
    assert the_letter(letters).body == Order("a")


def test_more_letters_than_a_page(box, letters):
    items = [f"i{n}" for n in range(250)]
    fill(box, letters, *items)
    odd = [item for item in items if int(item[1:]) % 2]
    count = replay_dead_letters(letters, box, predicate=lambda letter: letter.body.item in odd)
    assert count == 125
    assert [order.item for order in (m.body for m in box.receive(max_messages=200))] == odd
    assert letters.stats().pending == 125


def test_a_job_that_fails_again_at_once_is_not_replayed_forever(box, letters):
    fill(box, letters, "a", "b")
    worker = Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1))
    assert replay_dead_letters(letters, box, progress=lambda *_: run(worker)) == 2
    assert letters.stats().pending == 2


@pytest.mark.parametrize("died", ["before the send", "after the send"])
def test_killed_at_any_point_a_letter_is_neither_lost_nor_doubled(box, letters, died, monkeypatch):
    class Killed(BaseException):
        pass

    def die(*args, **kwargs):
        raise Killed

    async def released(*args):
        return [True]

    fill(box, letters, "a", "b")
    with monkeypatch.context() as patch:
        if died == "before the send":
            patch.setattr(box.store, "put", die)
            patch.setattr(letters.store, "release", released)
        else:
            patch.setattr(letters.store, "acknowledge_now", die)
        with pytest.raises(Killed):
            replay_dead_letters(letters, box)
    # its lease runs out
    handles = list(letters.store._leased)
    driven(letters.store.release(handles, 0.0))
    assert letters.stats().pending == 2
    assert replay_dead_letters(letters, box) == 2
    assert sorted(order.item for order in waiting(box)) == ["a", "b"]
    assert letters.stats().total == 0


def test_the_reply_address_is_resolved(shelf, box, letters):
    replies = shelf("replies")
    box.send(Order("tea"), reply_to=replies)
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    resolver = RegistryResolver({"replies": replies})
    assert replay_dead_letters(letters, box, reply_resolver=resolver) == 1
    run(Worker(box, lambda order: order.item.upper()))
    assert replies.receive()[0].body == "TEA"


def test_a_letter_whose_reply_address_nobody_knows_stays(shelf, box, letters):
    box.send(Order("tea"), reply_to=shelf("replies"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    before = letters.peek()[0].id
    assert replay_dead_letters(letters, box, reply_resolver=RegistryResolver({})) == 0
    assert [(p.id, p.delivery_count) for p in letters.peek()] == [(before, 0)]


def test_a_name_is_enough_where_only_names_travel():
    shelf = Shelf()
    box, letters = shelf.mailbox("orders"), shelf.mailbox("dead")
    box.send("tea", reply_to=shelf.mailbox("replies"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    assert box.receive()[0]._envelope.reply_to == "replies"


def test_in_memory_a_lost_address_does_not_hold_the_letter(caplog):
    box, letters = InMemoryMailbox("orders"), InMemoryMailbox("dead")
    box.send("tea", reply_to=InMemoryMailbox("replies"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    assert box.receive()[0].reply_to is None
    assert "reply_resolver=" in caplog.text


def test_bodies_are_sent_as_they_were_stored():
    """Also what the type of today would drop or refuse, and with its class name."""
    shelf = Shelf()
    box, letters = shelf.mailbox("orders", body_type=Order), shelf.mailbox("dead")
    payload = b'{"b":{"item":"tea",  "unknown":1.50},"t":"Order"}'
    box.store.put_now((Outgoing("x", payload),))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    stored = box.peek()[0].payload
    assert b'{"item":"tea",  "unknown":1.50}' in stored
    assert b'"t":"Order"' in stored


def test_letters_of_a_forgotten_type_can_still_be_replayed():
    shelf = Shelf()
    box, letters = shelf.mailbox("orders", body_type=Order), shelf.mailbox("dead")
    fill(box, letters, "tea")
    renamed = shelf.mailbox("orders", body_type=int)
    forgetful = reopened(letters)
    assert replay_dead_letters(forgetful, renamed, predicate=lambda x: "tea" in str(x.body)) == 1
    assert box.stats().pending == 1


def test_an_unreadable_body_is_replayed_as_it_was():
    shelf = Shelf()
    box, letters = shelf.mailbox("orders", body_type=Order), shelf.mailbox("dead")
    shelf.mailbox("orders").send({"item": 7})
    run(Worker(box, print, dlq=DLQPolicy(letters)))
    assert replay_dead_letters(letters, box) == 1
    assert b'{"item":7}' in box.peek()[0].payload


def test_what_is_no_letter_stays(box, letters, caplog):
    letters.send("hello")
    fill_one = box.send(Order("tea"))
    run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)))
    assert replay_dead_letters(letters, box) == 1
    assert letters.stats().pending == 1
    assert "is not a dead letter" in caplog.text
    assert fill_one


@pytest.mark.parametrize("seconds", [1e308, 1e15, -5.0])
def test_a_time_beyond_all_times_holds_no_letter(tmp_path, seconds):
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box, letters = backend.mailbox("orders"), backend.mailbox("dead")
        for body in ("tea", "milk"):
            box.send_expecting_reply(body)
        run(Worker(box, boom, dlq=DLQPolicy(letters, max_delivery_count=1)), 3)
        odd, other = letters.receive(max_messages=2)
        letters.send(replace(odd.body, reply_timeout=seconds, reply_keep=seconds))
        odd.acknowledge()
        other.nack()
        assert replay_dead_letters(letters, box) == 2
        assert sorted(message.body for message in box.receive(max_messages=2)) == ["milk", "tea"]


def test_a_queue_that_cannot_be_looked_into(box, letters, monkeypatch):
    fill(box, letters, "a", "b", "c", "d")
    monkeypatch.setattr(letters, "capabilities", Capabilities(peeks=False))
    assert replay_dead_letters(letters, box, dry_run=True) == 4
    assert letters.stats().pending == 4
    count = replay_dead_letters(letters, box, predicate=lambda letter: letter.body.item in "bd")
    assert count == 2
    assert waiting(box) == [Order("b"), Order("d")]
    assert letters.stats().pending == 2
    assert replay_dead_letters(letters, box, limit=1) == 1
    assert letters.stats().pending == 1


def test_what_is_received_and_not_replayed_is_given_back_uncounted(box, letters, monkeypatch):
    fill(box, letters, *"abcdef")
    before = [(seen.id, seen.delivery_count, seen.nack_count) for seen in letters.peek()]
    monkeypatch.setattr(letters, "capabilities", Capabilities(peeks=False))
    monkeypatch.setattr("weakincentives.runtime.leases.walk.PAGE", 2)
    for _ in range(3):
        assert replay_dead_letters(letters, box, predicate=lambda letter: False) == 0
        assert replay_dead_letters(letters, box, dry_run=True, limit=3) == 3
    after = [(seen.id, seen.delivery_count, seen.nack_count) for seen in letters.peek()]
    assert sorted(after) == sorted(before)


def test_where_every_receive_counts_a_letter_is_received_once_a_replay(monkeypatch):
    """And those behind the first page are reached: the first ones do not come again before."""
    box, letters = InMemoryMailbox("orders"), InMemoryMailbox("dead")
    fill(box, letters, *"abcdef")
    cannot = Capabilities(peeks=False, uncounted_releases=False)
    monkeypatch.setattr(letters, "capabilities", cannot)
    monkeypatch.setattr("weakincentives.runtime.leases.walk.PAGE", 2)
    received, receive = Counter(), letters.receive

    def counted(**options):
        messages = receive(**options)
        received.update(message.id for message in messages)
        return messages

    monkeypatch.setattr(letters, "receive", counted)
    count = replay_dead_letters(letters, box, predicate=lambda letter: letter.body.item == "f")
    assert count == 1
    assert set(received.values()) == {1}
    assert len(received) == 6
    assert letters.stats().pending == 5


def test_replay_tells(box, letters):
    fill(box, letters, "a")
    told = []
    box.dispatcher = InProcessDispatcher()
    box.dispatcher.subscribe(DeadLetterReplayed, told.append)
    replay_dead_letters(letters, box)
    (event,) = told
    assert event.mailbox == "orders-dlq"
    assert box.peek()[0].id == event.message_id


def test_other_peoples_mailboxes_are_refused(box):
    with pytest.raises(UnsupportedOperationError, match="DLQConsumer"):
        replay_dead_letters(object(), box)


def test_letters_that_are_held_do_not_come_back_while_a_long_replay_goes_on(monkeypatch):
    """Where nobody can peek, they would be received again in the place of others, and end it."""
    orders, letters = InMemoryMailbox("orders"), InMemoryMailbox("letters")
    fill(orders, letters, *(["tea"] * 20))
    monkeypatch.setattr(letters, "capabilities", Capabilities(peeks=False))
    monkeypatch.setattr(walk, "PAGE", 10)
    monkeypatch.setattr(walk, "LEASE", 1.5)
    pause = threading.Event()

    def judge(letter):
        pause.wait(0.12)  # twenty of these last longer than a lease
        return False

    assert replay_dead_letters(letters, orders, predicate=judge) == 0
    assert letters.stats().pending == 20
    assert {seen.delivery_count for seen in letters.peek(20)} == {0}
