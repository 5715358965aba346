import asyncio
import threading
from dataclasses import dataclass

import pytest

from weakincentives.runtime.mailbox import (
    CompositeResolver,
    InMemoryMailboxFactory,
    InvalidParameterError,
    MailboxClosedError,
    MailboxFullError,
    QueueNotEmptyError,
    ReplyState,
)
from weakincentives.runtime.mailbox.memory import mailbox
from weakincentives.runtime.mailbox.memory.backend import MemoryBackend
from weakincentives.runtime.mailbox.seam.store import Outgoing


@dataclass(frozen=True)
class Order:
    item: str


def test_the_same_name_is_the_same_mailbox() -> None:
    backend = MemoryBackend()
    assert backend.mailbox("a") is backend.mailbox("a")
    assert backend.mailbox("a") is backend.create("a")
    assert backend.mailbox("a") is not backend.mailbox("b")
    assert backend.queues() == ["a", "b"]


def test_a_closed_mailbox_is_opened_again_by_its_name() -> None:
    backend = MemoryBackend()
    closed = backend.mailbox("a", max_size=2)
    closed.send_batch(["held", "left"])
    (held,) = closed.receive()
    closed.close()
    box = backend.mailbox("a", body_type=str)
    assert box is not closed
    assert box is backend.mailbox("a")
    assert closed.closed
    assert [message.body for message in box.receive()] == ["left"]
    assert held.acknowledge()  # what was received before stays settleable, on the same queue
    assert box.approximate_count() == 1
    box.send("room again")
    with pytest.raises(MailboxFullError):
        box.send("one too many")
    assert box.body_type is str


def test_a_mailbox_opened_again_wakes_and_closes_with_its_backend() -> None:
    backend = MemoryBackend()
    backend.mailbox("a").close()
    box = backend.mailbox("a")
    backend.close()
    assert box.closed


def test_a_factory_opens_again_what_was_closed() -> None:
    factory = InMemoryMailboxFactory()
    closed = factory.create("a")
    closed.send("left")
    closed.close()
    box = factory.create("a")
    assert [message.body for message in box.receive()] == ["left"]
    assert box is factory.create("a")


def test_two_backends_share_nothing() -> None:
    MemoryBackend().mailbox("a").send("x")
    assert MemoryBackend().mailbox("a").receive() == []


def test_options_reach_the_mailbox() -> None:
    backend = MemoryBackend()
    box = backend.mailbox("a", body_type=Order, reply_type=str, max_size=1)
    assert (box._types.body, box._types.reply) == (Order, str)
    box.send(Order("tea"))
    with pytest.raises(MailboxFullError):
        backend.mailbox("a").send(Order("milk"))


def test_bad_names_and_options_are_refused_and_leave_nothing_behind() -> None:
    backend = MemoryBackend()
    with pytest.raises(InvalidParameterError, match="name"):
        backend.mailbox("no spaces")
    with pytest.raises(InvalidParameterError, match="max_size"):
        backend.mailbox("a", max_size=0)
    with pytest.raises(InvalidParameterError, match="default_ttl"):
        backend.mailbox("a", default_ttl=-1)
    assert backend.queues() == []


def test_callers_of_every_mailbox_wait_in_one_store() -> None:
    backend = MemoryBackend()
    reply = backend.mailbox("a").send_expecting_reply("x")
    entry = backend.reply_store().get(reply.id)
    assert entry is not None
    assert entry.state == ReplyState.PENDING


def test_a_backend_is_a_factory_for_resolvers() -> None:
    backend = MemoryBackend()
    assert CompositeResolver(factory=backend).resolve("answers") is backend.mailbox("answers")


def test_closing_closes_every_mailbox_and_is_final() -> None:
    with MemoryBackend() as backend:
        box = backend.mailbox("a")
        box.send("x")
        (held,) = box.receive()
    assert box.closed
    with pytest.raises(MailboxClosedError):
        box.send("y")
    with pytest.raises(MailboxClosedError, match="memory://"):
        backend.mailbox("b")
    assert held.acknowledge()
    backend.close()


def test_threads_that_ask_at_once_get_the_same_mailbox() -> None:
    backend = MemoryBackend()
    start = threading.Barrier(8)
    got: list[object] = []

    def ask() -> None:
        start.wait()
        got.extend(backend.mailbox(f"box-{n}") for n in range(100))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(box) for box in got}) == 100


def test_a_deleted_queue_is_no_longer_listed() -> None:
    backend = MemoryBackend()
    box = backend.mailbox("a")
    box.send("job")
    with pytest.raises(QueueNotEmptyError):
        backend.delete("a")
    assert backend.delete("a", force=True) is True
    assert backend.queues() == []
    assert backend.delete("a") is False
    assert backend.delete("never-opened") is False
    assert backend.mailbox("a") is box
    box.send("again")
    assert backend.queues() == ["a"]
    assert asyncio.run(backend.delete_async("a", force=True)) is True
    with pytest.raises(InvalidParameterError, match="name"):
        backend.delete("{}")
    backend.close()
    with pytest.raises(MailboxClosedError):
        backend.delete("a")


def test_closed_queues_that_nobody_needs_do_not_pile_up() -> None:
    backend = MemoryBackend()
    backend.mailbox("open")
    with backend.mailbox("full") as full:
        full.send("kept")
    with backend.mailbox("remembers") as remembers:
        remembers.send("job", message_id="order-7")
        remembers.receive()[0].acknowledge()
    for number in range(1000):
        with backend.mailbox(f"replies-{number}") as replies:
            replies.send("answer")
            replies.receive()[0].acknowledge()
    names = backend.queues()
    assert {"open", "full", "remembers", "replies-999"} <= set(names)
    assert len(names) <= mailbox.SWEEP_AT
    assert [message.body for message in backend.mailbox("full").receive()] == ["kept"]
    with backend.mailbox("remembers") as again:
        again.send("a repeat", message_id="order-7")
        assert again.receive() == []


def test_a_queue_that_is_dropped_takes_no_message_that_would_be_lost() -> None:
    backend = MemoryBackend()
    box = backend.mailbox("replies")
    store = box.store
    box.close()
    assert store.retire_if_idle()
    with pytest.raises(MailboxClosedError):
        store.put_now([Outgoing("late", "answer")])
    again = backend.mailbox("replies")
    again.send("answer")
    assert [message.body for message in again.receive()] == ["answer"]
