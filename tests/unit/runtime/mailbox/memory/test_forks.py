"""A forked child goes on with its copy of what was in memory, whatever other threads were doing."""

import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from testkit.forks import in_fork
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    InMemoryMailboxFactory,
    Message,
    ReceiptHandleExpiredError,
)
from weakincentives.runtime.mailbox.memory.backend import MemoryBackend

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def use(backend: MemoryBackend) -> None:
    """Use everything that has a lock."""
    box = backend.mailbox("jobs", body_type=int, reply_type=int)
    reply = box.send_expecting_reply(2)
    for message in box.receive(max_messages=5, wait_time_seconds=1):
        if message.expects_reply():
            message.reply(message.body + 1)
        else:
            message.acknowledge()
    assert reply.wait(timeout=120) == 3
    assert box.stats().total == 0
    box.close()
    backend.close()


@pytest.mark.parametrize("part", ["store", "bell", "replies", "mailbox", "backend"])
def test_a_lock_of_another_thread_is_none_of_the_childs(part: str) -> None:
    backend: Any = connect("memory://")
    box = backend.mailbox("jobs")
    box.send(1)
    lock = {
        "store": box.store._lock,
        "bell": box.store.bell._lock,
        "replies": backend.reply_store()._table._lock,
        "mailbox": box._lock,
        "backend": backend._lock,
    }[part]
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            inside.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(120)
    try:
        assert in_fork(lambda: use(backend), within=20) == 0
    finally:
        leave.set()
        holder.join(30)
    use(backend)


def test_a_factory_goes_on_in_a_child() -> None:
    factory = InMemoryMailboxFactory()
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with factory._lock:
            inside.set()
            leave.wait(60)

    holder = threading.Thread(target=hold)
    holder.start()
    assert inside.wait(120)
    try:
        assert in_fork(lambda: factory.create("jobs").send(1), within=20) == 0
    finally:
        leave.set()
        holder.join(30)


def settle(message: Message[int, int]) -> None:
    if message.body == 2:
        message.nack(visibility_timeout=3600)
    elif message.expects_reply():
        message.reply(5)
    else:
        message.acknowledge()


def busy(box: InMemoryMailbox[int, int], stop: threading.Event) -> None:
    while not stop.is_set():
        box.send_batch([1, 2, 3])
        reply = box.send_expecting_reply(4, reply_timeout=60)
        for message in box.receive(max_messages=3):
            with suppress(ReceiptHandleExpiredError):  # another thread has purged the queue
                settle(message)
        reply.cancel()
        if box.approximate_count() > 100:
            box.purge()


def check_and_use(box: InMemoryMailbox[int, int]) -> None:
    """Whatever step the fork came into: nothing is there twice, all of it can be settled."""
    box.send(6)
    before = box.stats()
    assert len(box.peek(1000)) == before.pending
    seen = [message for _ in range(50) for message in box.receive(max_messages=100)]
    assert len({message.id for message in seen}) == len(seen) == before.pending
    assert all(box.store.acknowledge_now([message.receipt_handle for message in seen]))
    assert box.stats().pending == 0
    assert box.purge() == before.total - len(seen)
    assert box.send_expecting_reply(7).cancel()


def test_a_child_of_a_busy_process_finds_its_queue_in_order() -> None:
    box: InMemoryMailbox[int, int] = InMemoryMailbox("jobs", body_type=int, reply_type=int)
    stop = threading.Event()
    threads = [threading.Thread(target=busy, args=(box, stop)) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        codes = [in_fork(lambda: check_and_use(box)) for _ in range(15)]
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert codes == [0] * 15
    check_and_use(box)


def in_background(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(work()), daemon=True)
    thread.start()
    return thread, results


def test_a_thread_that_waits_in_the_parent_takes_no_wake_up_in_the_child() -> None:
    box: InMemoryMailbox[int, None] = InMemoryMailbox("jobs", reaper_interval=3600)

    def wait() -> list[int]:
        return [message.body for message in box.receive(wait_time_seconds=3600)]

    waiting, heard = in_background(wait)
    eventually(lambda: box.store.bell._waiting)

    def child() -> None:
        assert not box.store.bell._waiting
        waiting, heard = in_background(wait)
        eventually(lambda: box.store.bell._waiting)
        box.send(1)
        waiting.join(30)
        assert heard == [[1]]

    assert in_fork(child) == 0
    box.send(2)
    waiting.join(30)
    assert heard == [[2]]
