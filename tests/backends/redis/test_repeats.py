"""Trap 9: calls whose answer was lost are made again, and count once."""

from functools import partial
from typing import Any

import pytest
import redis.asyncio

from testkit.proxy import Proxy
from testkit.servers import Standalone
from tests.backends.redis.seeds import let_pass
from weakincentives.contrib.mailbox.redis import RedisMailbox, RedisReplyStore
from weakincentives.ids import new_id
from weakincentives.runtime.mailbox import MailboxFullError
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]


def test_a_send_whose_answer_is_lost_is_one_message(far: Box, proxy: Proxy, box: Box) -> None:
    far.send("warm")
    proxy.lose_answer(b"precious")
    far.send("precious")
    far.send_batch(["a", "b"])
    assert proxy.lost == 1
    assert [m.body for m in box.receive(max_messages=10)] == ["warm", "precious", "a", "b"]


def test_an_ack_whose_answer_is_lost_succeeds(far: Box, proxy: Proxy, box: Box) -> None:
    far.send("work")
    (message,) = far.receive()
    proxy.lose_answer(b"\r\nack\r\n")
    assert message.acknowledge()
    assert proxy.lost == 1
    assert box.approximate_count() == 0


def test_an_ack_repeated_after_the_lease_is_refused(
    far: Box, proxy: Proxy, box: Box, server: Standalone
) -> None:
    """The message is gone, but it may have been another consumer who was done with it."""
    far.send("work")
    (leased,) = driven(far.store.lease(1, 0.05)).messages
    let_pass(server, 0.1)
    (again,) = box.receive()
    again.acknowledge()
    proxy.lose_answer(b"\r\nack\r\n")
    assert driven(far.store.acknowledge([leased.handle])) == [False]
    assert proxy.lost == 1


def test_an_ack_repeated_while_the_message_is_there_again_is_refused(
    far: Box, proxy: Proxy, server: Standalone
) -> None:
    """A failover may have undone the lease: the message waits, so it was not acknowledged."""
    far.send("work")
    (leased,) = driven(far.store.lease(1, 60)).messages
    record = leased.handle.rpartition("|")[0]
    server.command("ZREM", "{queue:box}:invisible", leased.handle)
    server.command("LPUSH", "{queue:box}:pending", record)
    proxy.lose_answer(b"\r\nack\r\n")
    assert driven(far.store.acknowledge([leased.handle])) == [False]
    assert far.approximate_count() == 1


def test_a_nack_whose_answer_is_lost_counts_once(far: Box, proxy: Proxy, box: Box) -> None:
    far.send("work")
    (message,) = far.receive()
    proxy.lose_answer(b"\r\nfailed\r\n")
    assert message.nack()
    assert proxy.lost == 1
    (again,) = box.receive(max_messages=10)
    assert (again.nack_count, again.delivery_count) == (1, 2)


def test_an_extension_whose_answer_is_lost(far: Box, proxy: Proxy) -> None:
    far.send("work")
    (message,) = far.receive(visibility_timeout=60)
    proxy.lose_answer(b"\r\nextend\r\n")
    assert message.extend_visibility(120)


def test_a_lease_whose_answer_is_lost_comes_back(far: Box, proxy: Proxy) -> None:
    far.send("work")
    proxy.lose_answer(b"EVALSHA")
    assert far.receive(visibility_timeout=0.5) == []
    (message,) = far.receive(visibility_timeout=30, wait_time_seconds=10)
    assert message.delivery_count == 2


def test_an_exchange_whose_answer_is_lost(far: Box, proxy: Proxy, box: Box) -> None:
    far.send_batch([1, 2, 3])
    done = far.receive()
    proxy.lose_answer(done[0].receipt_handle.encode())
    (message,) = far.exchange(done, visibility_timeout=30)
    assert done[0].is_finalized
    assert message.body == 3  # 2 is leased to an answer that nobody got
    assert box.stats().in_flight == 2


def test_replies_survive_lost_answers(far: Box, proxy: Proxy) -> None:
    replies: RedisReplyStore[Any] = RedisReplyStore(redis.Redis(port=proxy.port))
    for step in ("create", "resolve", "get", "consume"):
        proxy.lose_answer(f"\r\n{step}\r\n".encode())
        if step == "create":
            assert replies.create("id", ttl=60)
        elif step == "resolve":
            assert replies.resolve("id", {"a": 1})
        else:
            entry = getattr(replies, step)("id")
            assert entry is not None
            assert entry.value == {"a": 1}
    assert proxy.lost == 4
    assert replies.get("id") is None
    assert replies.consume("id") is None
    proxy.lose_answer(b"\r\ncancel\r\n")
    replies.create("other", ttl=60)
    assert replies.cancel("other")


@pytest.mark.parametrize("size", [1, 3])
def test_a_first_attempt_that_arrives_after_its_repeat_adds_nothing(box: Box, size: int) -> None:
    messages = [Outgoing(new_id(), b"{}") for _ in range(size)]
    call = box.store.queue.put(messages)
    connection = box.store.client.topology.make(None)
    connection.connect()
    for packed in (call.packed_again(as_text=True, repeated=True), call.packed()):
        connection.send_packed_command([packed])
        connection.read_response()
    connection.disconnect()
    assert box.stats().pending == size
    assert len(box.receive(max_messages=10)) == size


def test_a_question_whose_answer_was_lost_is_asked_once(far: Box, proxy: Proxy) -> None:
    far.send("to load the script")
    far.purge()
    proxy.lose_answer(b":entry:")
    reply = far.send_expecting_reply("question")
    assert proxy.lost == 1
    (message,) = far.receive(max_messages=2)
    message.reply("answer")
    assert reply.wait(timeout=120) == "answer"


def test_a_question_that_finds_no_room_leaves_no_reply(client: Any, server: Standalone) -> None:
    box: Box = RedisMailbox("small", client, max_size=1)
    box.send_expecting_reply("fits")
    with pytest.raises(MailboxFullError):
        box.send_expecting_reply("does not")
    assert len(server.command("KEYS", "{replies:*}:entry:*")) == 1


def test_an_answer_that_nobody_waited_for_is_not_taken_for_another(
    far: Box, proxy: Proxy, server: Standalone
) -> None:
    for fault in (lambda: None, proxy.cut_all, partial(server.command, "SCRIPT", "FLUSH")):
        reply = far.send_expecting_reply("question")
        far.receive()[0].reply("answer")
        assert reply.wait(timeout=120) == "answer"  # the entry is removed without waiting for it
        fault()
        assert far.send("next", message_id="next") == "next"
        assert [message.body for message in far.receive(max_messages=5)] == ["next"]
        far.purge()
        server.command("FLUSHALL")
