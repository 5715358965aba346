"""Deleting a queue leaves no key behind; nor does one that is empty."""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import pytest

from testkit.proxy import Proxy
from testkit.servers import Standalone
from weakincentives import connect
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.runtime.mailbox import QueueNotEmptyError
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]
spawn = multiprocessing.get_context("spawn")


def keys(client: Any) -> list[str]:
    return sorted(
        key.decode() if isinstance(key, bytes) else key for key in client.scan_iter("{queue:*")
    )


def test_no_key_of_a_deleted_queue_stays(box: Box, client: Any, server: Standalone) -> None:
    box.send(1, message_id="order-7")
    box.send(2, delay_seconds=60)
    box.receive()
    server.command("LPUSH", "{queue:box}:unreadable", "rubbish")
    other: Box = RedisMailbox("other", client)
    other.send(3)
    with pytest.raises(QueueNotEmptyError, match="0 pending, 1 in flight, 1 delayed"):
        driven(box.store.delete())
    assert driven(box.store.delete(True)) is True
    assert {key.partition("}")[0] for key in keys(client)} == {"{queue:other"}
    assert driven(box.store.delete(True)) is False


def test_of_an_empty_queue_nothing_stays_for_long(box: Box, client: Any) -> None:
    """Many have one for each caller, for replies."""
    box.send("answer", message_id="answer-7")
    box.receive()[0].nack()
    (message,) = box.receive(wait_time_seconds=1)
    message.acknowledge()
    box.send_batch(["a", "b"])
    client.delete("{queue:box}:wake")  # as if it had expired: who comes to wait looks first
    rest = [*box.receive(wait_time_seconds=30), *box.receive()]
    assert box.acknowledge_batch(rest) == [True, True]
    box.send("c")
    box.receive()[0].acknowledge()
    left = keys(client)
    assert left  # a token that nobody waited for, and the ids
    assert all(0 < client.pttl(key) <= 3_600_000 for key in left)


def test_nor_of_one_that_was_paused(server: Standalone, client: Any) -> None:
    with connect(server.url) as backend:
        backend.mailbox("box").send("work")
        for name in ("box", "other"):
            backend.pause(name)
        assert backend.delete("box", force=True) is True
        assert backend.resume("other") is True
    left = keys(client)
    assert left  # the tokens that tell of the end of a pause
    assert all(0 < client.pttl(key) <= 3_600_000 for key in left)


@pytest.fixture
def restricted(server: Standalone) -> Iterator[str]:
    """The URL of a user who may use queues and replies, but not what all queues share."""
    keys = ("~{queue:*", "~{replies:*")
    server.command("ACL", "SETUSER", "app", "reset", "on", ">secret", *keys, "+@all")
    yield server.url.replace("redis://", "redis://app:secret@")
    server.command("ACL", "DELUSER", "app")


def test_a_user_without_the_list_of_pauses_ends_one(server: Standalone, restricted: str) -> None:
    with connect(server.url) as operator, connect(restricted) as app:
        for name in ("resumed", "deleted"):
            operator.mailbox(name).send("work")
            operator.pause(name)
        assert app.resume("resumed") is True
        assert app.delete("deleted", force=True) is True
        assert operator.paused() == []
        assert operator.queues() == ["resumed"]


def test_a_delete_whose_answer_is_lost_has_deleted(far: Box, proxy: Proxy, box: Box) -> None:
    far.send("work")
    proxy.lose_answer(b"unreadable\r\n$1\r\n1\r\n")
    assert driven(far.store.delete(True)) is True
    assert proxy.lost == 1
    assert box.approximate_count() == 0


def test_a_server_at_its_maxmemory_deletes(client: Any, box: Box, server: Standalone) -> None:
    box.send("work")
    server.command("CONFIG", "SET", "maxmemory", "1")
    try:
        assert driven(box.store.delete(True)) is True
    finally:
        server.command("CONFIG", "SET", "maxmemory", "0")


def send_each(url: str, queue: str, first: int, count: int) -> None:
    with connect(url) as backend:
        box = backend.mailbox(queue)
        for number in range(first, first + count):
            box.send(number)


def test_what_other_processes_send_while_a_queue_is_deleted_arrives(server: Standalone) -> None:
    race(server.url)


@pytest.mark.full
def test_nor_is_anything_lost_on_a_cluster(shared_cluster: Any) -> None:
    host, port = shared_cluster.startup_nodes[0]
    race(f"redis+cluster://{host}:{port}")


def race(url: str) -> None:
    """Send from other processes, and delete the queue whenever it is empty."""
    each, senders = 200, 2
    with connect(url) as backend:
        backend.delete("raced", force=True)
        processes = [
            spawn.Process(target=send_each, args=(url, "raced", n * each, each))
            for n in range(senders)
        ]
        for process in processes:
            process.start()
        box, deleted = backend.mailbox("raced"), 0
        got: list[int] = []
        while len(got) < each * senders:
            messages = box.receive(max_messages=3, wait_time_seconds=60)
            assert messages, f"{len(got)} messages came"
            got += [message.body for message in messages]
            assert all(box.acknowledge_batch(messages))
            try:
                backend.delete("raced")
                deleted += 1
            except QueueNotEmptyError:
                pass
        for process in processes:
            process.join(60)
            assert process.exitcode == 0
        assert sorted(got) == list(range(each * senders))
        assert deleted > 0
        assert "raced" not in backend.queues()
