import asyncio
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest

from tests.contract.shelf import AwaitedStore, BlockingReplies, Shelf
from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    InMemoryReplyStore,
    ReplyCancelledError,
    ReplyEntry,
    ReplyExpectedError,
    ReplyState,
    ReplyStore,
    ReplyTimeoutError,
)
from weakincentives.runtime.mailbox.replies.foreign import (
    ForeignReplyTable,
    PollingReplyListener,
    next_poll,
)
from weakincentives.runtime.mailbox.testing import driven


class ForeignStore:
    """Somebody else's reply store: only what the Protocol asks for, and it can be made slow."""

    def __init__(self) -> None:
        self.inner: InMemoryReplyStore[object] = InMemoryReplyStore()
        self.gets = 0
        self.resolve_at_get: int | None = None

    def create(self, id: str, *, ttl: float) -> bool:
        return self.inner.create(id, ttl=ttl)

    def resolve(self, id: str, value: object) -> bool:
        return self.inner.resolve(id, value)

    def cancel(self, id: str) -> bool:
        return self.inner.cancel(id)

    def get(self, id: str) -> ReplyEntry[object] | None:
        self.gets += 1
        if self.gets == self.resolve_at_get:
            self.inner.resolve(id, "late")
        return self.inner.get(id)

    def consume(self, id: str) -> ReplyEntry[object] | None:
        return self.inner.consume(id)

    def delete(self, id: str) -> bool:
        return self.inner.delete(id)

    def scan_expired(self, *, limit: int = 100) -> Sequence[str]:
        return self.inner.scan_expired(limit=limit)

    def cleanup_expired(self, *, limit: int = 100) -> int:
        return self.inner.cleanup_expired(limit=limit)


def test_polls_become_ever_rarer_up_to_a_second() -> None:
    pauses = [next_poll(attempt, 0.0) for attempt in range(100)]
    assert pauses[0] == 0.01
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1.0
    assert next_poll(10_000, 0.0) == 1.0


@pytest.mark.parametrize("attempt", [0, 3, 50])
def test_jitter_takes_away_up_to_a_half(attempt: int) -> None:
    full = next_poll(attempt, 0.0)
    assert next_poll(attempt, 1.0) == full / 2
    assert full / 2 < next_poll(attempt, 0.5) < full


@pytest.mark.parametrize("is_async", [False, True])
class TestListener:
    def get(self, store: ForeignStore, wait: float, is_async: bool) -> object:
        listener = PollingReplyListener(ForeignReplyTable(store), "r", in_loop=is_async)
        row = asyncio.run(listener.get(wait)) if is_async else driven(listener.get(wait))
        listener.close()
        return None if row is None else row.state

    def test_it_returns_when_the_reply_comes(self, is_async: bool) -> None:
        store = ForeignStore()
        store.create("r", ttl=60)
        store.resolve_at_get = 3
        assert self.get(store, 30, is_async) == ReplyState.RESOLVED
        assert store.gets == 3

    def test_it_returns_at_once_when_there_is_nothing_to_wait_for(self, is_async: bool) -> None:
        store = ForeignStore()
        assert self.get(store, 30, is_async) is None
        store.create("r", ttl=60)
        store.cancel("r")
        assert self.get(store, 30, is_async) == ReplyState.CANCELLED
        assert store.gets == 2

    def test_it_returns_what_there_is_when_time_is_over(self, is_async: bool) -> None:
        store = ForeignStore()
        store.create("r", ttl=60)
        started = time.monotonic()
        assert self.get(store, 0.05, is_async) == ReplyState.PENDING
        assert 0.05 <= time.monotonic() - started < 15


def test_rows_say_what_the_entries_say() -> None:
    store = ForeignStore()
    table = ForeignReplyTable(store)
    assert driven(table.create("r", 60))
    assert not driven(table.create("r", 60))
    row = driven(table.get("r"))
    assert row is not None
    assert (row.id, row.state, row.resolved_at) == ("r", ReplyState.PENDING, None)
    assert row.expires_at - row.created_at == pytest.approx(60, abs=0.01)
    assert abs(datetime.fromtimestamp(row.created_at, UTC) - datetime.now(UTC)) < timedelta(
        minutes=1
    )
    assert driven(table.scan_expired(10)) == []
    assert driven(table.cleanup_expired(10)) == 0
    store.resolve("r", "value")
    consumed = driven(table.consume("r"))
    assert consumed is not None
    assert consumed.payload.body == "value"
    assert consumed.resolved_at is not None
    assert driven(table.consume("r")) is None
    assert not driven(table.delete("r"))
    assert not driven(table.cancel("r"))


class TestMailboxWithAForeignStore:
    def mailbox(self) -> tuple[InMemoryMailbox[str, object], ForeignStore]:
        store = ForeignStore()
        typed: ReplyStore[object] = store
        return InMemoryMailbox("x", reply_store=typed), store

    def test_replies_travel(self) -> None:
        box, _ = self.mailbox()
        reply = box.send_expecting_reply("question")
        (message,) = box.receive()
        message.reply({"answer": 42})
        assert reply.wait(timeout=120) == {"answer": 42}
        assert reply.wait() == {"answer": 42}

    def test_replies_travel_in_an_event_loop(self) -> None:
        async def main() -> object:
            box, _ = self.mailbox()
            reply = await box.send_expecting_reply_async("question")
            (message,) = await box.receive_async()
            await message.reply_async("answer")
            return await reply.wait_async(timeout=30)

        assert asyncio.run(main()) == "answer"

    def test_waiting_times_out_and_can_be_repeated(self) -> None:
        box, store = self.mailbox()
        reply = box.send_expecting_reply("question")
        with pytest.raises(ReplyTimeoutError, match="again"):
            reply.wait(timeout=0.01)
        store.resolve(reply.id, "after all")
        assert reply.wait(timeout=120) == "after all"

    def test_cancelled(self) -> None:
        box, _ = self.mailbox()
        reply = box.send_expecting_reply("question")
        assert reply.cancel()
        with pytest.raises(ReplyCancelledError):
            reply.wait(timeout=30)
        (message,) = box.receive()
        channel = message.reply_channel
        assert channel is not None
        assert not channel.is_open()


def test_a_reply_store_that_blocks_serves_a_mailbox_that_is_awaited() -> None:
    """Each of its steps runs in the executor: the event loop goes on meanwhile."""
    shelf = Shelf(AwaitedStore, BlockingReplies)

    async def main() -> object:
        box = shelf.mailbox("x")
        abandoned = await box.send_expecting_reply_async("never mind")
        assert await abandoned.cancel_async()
        assert await box.receive_async() == []
        reply = await box.send_expecting_reply_async("question")
        assert await reply.poll_async() is None
        (message,) = await box.receive_async(wait_time_seconds=5)
        with pytest.raises(ReplyExpectedError):
            await box.acknowledge_batch_async([message])
        await message.reply_async("answer")
        return await reply.wait_async(timeout=30)

    assert asyncio.run(main()) == "answer"
