"""Waiting for many replies, and what a cancel finds of one."""

import asyncio

import pytest

from weakincentives import connect
from weakincentives.runtime.mailbox import (
    MailboxConnectionError,
    ReplyCancelledError,
    ReplyNotFoundError,
    ReplyTimeoutError,
    as_completed,
    as_completed_async,
)
from weakincentives.runtime.mailbox.memory.store import InMemoryStore

DEADLINE = 60.0


@pytest.fixture
def backend():
    with connect("memory://") as backend:
        yield backend


@pytest.fixture
def box(backend):
    return backend.mailbox("jobs")


def answered(box, *bodies):
    replies = [box.send_expecting_reply(body) for body in bodies]
    for message in box.receive(max_messages=len(bodies)):
        message.reply(message.body.upper())
    return replies


def completed(replies, **options):
    return list(as_completed(replies, **options))


def completed_async(replies, **options):
    async def collect():
        return [reply async for reply in as_completed_async(replies, **options)]

    return asyncio.run(collect())


@pytest.fixture(params=[completed, completed_async])
def complete(request):
    return request.param


def test_nothing_is_complete_at_once(complete):
    assert complete([]) == []


def test_the_same_reply_twice_comes_twice(box, complete):
    (reply,) = answered(box, "tea")
    assert [one.wait() for one in complete([reply, reply], timeout=DEADLINE)] == ["TEA", "TEA"]


def test_a_cancelled_reply_is_settled(box, complete):
    cancelled = box.send_expecting_reply("tea")
    cancelled.cancel()
    (reply,) = complete([cancelled], timeout=DEADLINE)
    with pytest.raises(ReplyCancelledError):
        reply.wait()


def test_a_reply_that_is_not_there_keeps_no_other_from_its_caller(backend, box, complete):
    (reply,) = answered(box, "tea")
    unknown = backend.reply("unknown")
    assert complete([unknown, reply], timeout=DEADLINE) == [unknown, reply]
    with pytest.raises(ReplyNotFoundError):
        unknown.wait()


def test_what_is_pending_ends_the_iteration_in_time(box, complete):
    with pytest.raises(ReplyTimeoutError, match="1 reply has"):
        complete([*answered(box, "tea"), box.send_expecting_reply("coffee")], timeout=0.05)


def test_a_reply_is_cancelled_though_its_queue_cannot_be_reached(backend, box, monkeypatch):
    reply = backend.reply(box.send_expecting_reply("tea").id)

    def unreachable(queue):
        raise MailboxConnectionError(queue)

    monkeypatch.setattr(reply, "_store_of", unreachable)
    assert reply.cancel() is True
    assert reply.is_cancelled()


def test_a_message_that_was_just_answered_is_not_cancelled(box):
    """The worker has settled the reply, and is about to acknowledge the message."""
    reply = box.send_expecting_reply("tea")
    (message,) = box.receive()
    message.reply_channel.send("TEA")
    assert box.cancel(message.id) is False
    assert reply.wait(timeout=DEADLINE) == "TEA"


def test_a_cancel_that_was_interrupted_is_ended_by_the_next_step(box, monkeypatch):
    id = box.send("tea")

    def interrupted(store, entry):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(InMemoryStore, "_drop", interrupted)
        box.cancel(id)
    assert box.receive() == []
    assert box.stats().total == 0
