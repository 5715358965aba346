"""Tests of what callers see of their jobs: handles made from an id, status, parts."""

from typing import Any

import pytest

from weakincentives.ids import new_id
from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxFullError,
    ReplyCancelledError,
    ReplyNotFoundError,
    ReplyTimeoutError,
)
from weakincentives.runtime.mailbox.replies.parts import PartCodec
from weakincentives.runtime.mailbox.replies.status import JobState

from .driver import DEADLINE, background
from .harness import LONG, Harness

__all__ = ["Callers"]


class Callers(Harness):
    """Whoever has the id of a reply can ask what became of the job, and read its answer."""

    def asked(self, box: Any, **options: Any) -> Any:
        """Send a message that expects a reply; skip the test if the backend has no replies."""
        self.ask(box)
        self.take_one(box).reply("skip me")
        return box.send_expecting_reply("question", **{"reply_timeout": LONG, **options})

    def started(self, box: Any) -> Any:
        """Receive a message and record that its job begins, as a worker does."""
        message = self.take_one(box)
        assert self.driver.call(message.raw._start) is True
        return message

    def row(self, box: Any, reply: Any) -> Any:
        """Return a reply as its table keeps it."""
        return self.driver.call(box.raw._replies().table.get, reply.id)

    def emit(self, message: Any, *values: Any) -> bool:
        """Emit parts, as a worker does for its handler."""
        raw = message.raw
        codec = PartCodec(raw._mailbox._replies().table.keeps_objects)
        emitted: bool = self.driver.call(raw._emit, [codec.sealed(value) for value in values])
        return emitted

    def read(self, reply: Any, **options: Any) -> list[Any]:
        """Read all parts of a reply."""
        raw = reply.raw
        if self.driver.face == "sync":
            return list(raw.parts(**options))

        async def collect() -> list[Any]:
            return [part async for part in raw.parts_async(**options)]

        parts: list[Any] = self.driver.run(collect())
        return parts

    def test_a_handle_from_an_id_reads_the_reply(self) -> None:
        box = self.mailbox()
        asker = self.asked(box, keep=1000)
        reader = self.handle(self.again(box), asker.id)
        assert reader.id == asker.id
        assert (reader.is_ready(), reader.poll()) == (False, None)
        assert reader.message_id == asker.message_id
        waiting = background(reader.wait, timeout=DEADLINE)
        self.take_one(box).reply("answer")
        assert waiting.result(DEADLINE) == "answer"
        for handle in (asker, reader, self.handle(box, asker.id)):
            assert handle.wait(timeout=LONG) == "answer"
            assert handle.is_ready()

    def test_only_the_asker_removes_the_reply(self) -> None:
        box = self.mailbox()
        asker = self.asked(box)
        self.take_one(box).reply("answer")
        for _ in range(2):
            assert self.handle(box, asker.id).wait(timeout=LONG) == "answer"
        assert asker.wait() == "answer"
        with pytest.raises(ReplyNotFoundError):
            self.handle(box, asker.id).wait(timeout=LONG)
        assert asker.wait() == "answer"

    def test_a_batch_of_requests(self) -> None:
        box = self.mailbox()
        self.asked(box)
        self.take_one(box).reply("skip me")
        count = box.limits.max_batch + 2 if box.limits.max_batch < 100 else 12
        replies = box.send_batch_expecting_replies(list(range(count)), keep=1000)
        assert len({reply.id for reply in replies}) == count
        assert {reply.status().state for reply in replies} == {JobState.QUEUED}
        messages = self.take(box, count)
        assert {message.id for message in messages} == {reply.message_id for reply in replies}
        for message in messages:
            message.reply(message.body * 10)
        assert [reply.wait(timeout=LONG) for reply in replies] == [10 * n for n in range(count)]
        again = [self.handle(box, reply.id) for reply in replies]
        assert [reply.poll() for reply in again] == [10 * n for n in range(count)]
        assert box.send_batch_expecting_replies([]) == []

    def test_a_batch_of_requests_without_room_is_not_sent_at_all(self) -> None:
        box = self.mailbox(max_size=2)
        self.needs(box, "atomic_batches")
        self.ask(box)
        with pytest.raises(MailboxFullError) as caught:
            box.send_batch_expecting_replies(["a", "b"])
        assert (list(caught.value.sent_ids), list(caught.value.sent_replies)) == ([], [])
        assert box.approximate_count() == 1

    def test_a_large_batch_of_requests_that_fails_in_part_says_what_was_sent(self) -> None:
        box = self.mailbox(max_size=1500)
        self.needs(box, "atomic_batches")
        self.asked(box)
        size = box.limits.max_send_batch
        with pytest.raises(MailboxFullError) as caught:
            box.send_batch_expecting_replies(list(range(size + 600)))
        sent = caught.value.sent_replies
        assert [reply.message_id for reply in sent] == list(caught.value.sent_ids)
        assert len(sent) == size
        self.take_one(box).reply("of the request before")
        self.take_one(box).reply("zero")
        assert self.handle(box, sent[0].id).wait(timeout=LONG) == "zero"

    def test_what_is_put_off_is_waited_for_that_much_longer(self) -> None:
        box = self.mailbox()
        reply = self.asked(box, reply_timeout=100)
        message = self.started(box)
        before = self.row(box, reply)
        assert box.release_batch([message], 0, "put_off") == [True]
        message = self.started(box)
        assert abs(self.row(box, reply).expires_at - before.expires_at) < 1
        assert box.release_batch([message], 500, "put_off") == [True]
        row = self.row(box, reply)
        assert abs(row.expires_at - before.expires_at - 500) < 1
        assert row.ttl == before.ttl
        assert box.release_batch([message], 500, "put_off") == [True]  # it was given back
        assert abs(self.row(box, reply).expires_at - row.expires_at) < 1

    def test_a_lease_that_has_ended_prolongs_nothing(self) -> None:
        box = self.mailbox()
        reply = self.asked(box)
        if box.raw._reply_maker is None:
            pytest.skip("declared: no step of this queue can also change the reply")
        message = self.started(box)
        other = self.again(box).release_batch  # so that this message does not know of it
        assert other([message], 0, "undone") == [True]
        message.raw._state = "held"
        before = self.row(box, reply)
        assert box.release_batch([message], 500, "put_off") == [False]
        assert abs(self.row(box, reply).expires_at - before.expires_at) < 1

    def test_after_the_message_is_given_back_parts_are_refused(self) -> None:
        box = self.mailbox()
        reply = self.asked(box)
        message = self.started(box)
        assert self.emit(message, "in time") is True
        message.nack()
        assert self.emit(message, "late") is False
        assert self.row(box, reply).parts == 1

    def test_an_unknown_reply_is_not_found(self) -> None:
        box = self.mailbox()
        self.asked(box)
        nobody = self.handle(box, new_id())
        for call in (nobody.wait, nobody.poll, nobody.is_ready, nobody.status, nobody.cancel):
            with pytest.raises(ReplyNotFoundError):
                call()
        with pytest.raises(ReplyNotFoundError):
            self.read(nobody, timeout=LONG)

    def test_bad_input(self) -> None:
        box = self.mailbox()
        reply = self.asked(box)
        for id in ("", "a b", "x" * 200, "a/b", None, 7):
            with pytest.raises(InvalidParameterError):
                self.handle(box, id)
        for keep in (0, -1, "5", True, float("nan")):
            with pytest.raises(InvalidParameterError, match="keep"):
                box.send_expecting_reply(1, keep=keep)
        for options in (
            {"keep": 0},
            {"reply_timeout": 0},
            {"reply_timeout": 5, "delay_seconds": 5},
        ):
            with pytest.raises(InvalidParameterError):
                box.send_batch_expecting_replies([1], **options)
        with pytest.raises(InvalidParameterError, match="bodies"):
            box.send_batch_expecting_replies("text")
        for start in (-1, 1.5, "0", None):
            with pytest.raises(InvalidParameterError, match="start"):
                self.read(reply, start=start)

    def test_the_status_follows_the_job(self) -> None:
        box = self.mailbox()
        reply = self.asked(box, keep=1000)
        status = reply.status()
        assert (status.state, status.deliveries, status.worker) == (JobState.QUEUED, 0, None)
        assert (status.message_id, status.last_part) == (reply.message_id, None)
        message = self.started(box)
        status = self.handle(box, reply.id).status()
        assert (status.state, status.deliveries) == (JobState.RUNNING, 1)
        assert status.worker
        assert status.since.tzinfo is not None
        self.emit(message, "part")
        assert reply.status().last_part == 0
        message.reply("answer")
        assert reply.status().state == JobState.DONE
        assert reply.wait() == "answer"
        assert self.handle(box, reply.id).status().state == JobState.DONE

    def test_the_status_of_a_job_that_is_tried_again(self) -> None:
        box = self.mailbox()
        self.needs(box, "cancels")
        reply = self.asked(box)
        self.started(box).nack()
        assert reply.status().state == JobState.RETRYING
        self.started(box)
        status = reply.status()
        assert (status.state, status.deliveries) == (JobState.RUNNING, 2)

    def test_the_status_of_a_job_whose_worker_is_gone(self) -> None:
        box = self.mailbox()
        self.needs(box, "cancels")
        reply = self.asked(box)
        message = self.take_one(box, lease=self.moment)
        assert self.driver.call(message.raw._start) is True
        self.elapse(self.moment)
        assert reply.status().state == JobState.RETRYING

    def test_the_status_of_what_is_cancelled_or_expired(self) -> None:
        box = self.mailbox()
        cancelled, expired = (
            self.asked(box),
            box.send_expecting_reply("late", reply_timeout=self.moment * 2, keep=1000),
        )
        assert cancelled.cancel() is True
        assert cancelled.status().state == JobState.CANCELLED
        self.elapse(self.moment * 2)
        assert expired.status().state == JobState.EXPIRED
        assert expired.is_ready()
        with pytest.raises(ReplyTimeoutError):
            expired.wait()

    def test_what_was_settled_never_counts_as_expired(self) -> None:
        self.needs_fake_clock()
        box = self.mailbox()
        reply = self.asked(box, keep=100)
        self.take_one(box).reply("answer")
        self.elapse(99)
        assert self.handle(box, reply.id).status().state == JobState.DONE
        self.elapse(2)
        for call in (self.handle(box, reply.id).status, self.handle(box, reply.id).wait):
            with pytest.raises(ReplyNotFoundError):
                call()

    def test_parts_are_read_until_the_reply_is_settled(self) -> None:
        box = self.mailbox()
        reply = self.asked(box, keep=1000)
        message = self.started(box)
        reading = background(self.read, reply, timeout=DEADLINE / 2)
        assert self.emit(message, {"n": 0}, {"n": 1}) is True
        assert self.emit(message, {"n": 2}) is True
        message.reply("answer")
        parts = reading.result(DEADLINE)
        assert [part.value for part in parts] == [{"n": 0}, {"n": 1}, {"n": 2}]
        assert [part.index for part in parts] == [0, 1, 2]
        assert {part.delivery for part in parts} == {1}
        later = self.read(self.handle(box, reply.id), start=2)
        assert [part.value for part in later] == [{"n": 2}]
        assert self.read(reply, start=9) == []

    def test_a_handler_that_begins_again_emits_another_series(self) -> None:
        box = self.mailbox()
        reply = self.asked(box, keep=1000)
        first = self.started(box)
        self.emit(first, "a")
        first.nack()
        second = self.started(box)
        assert self.emit(first, "from the first") is False
        self.emit(second, "a", "b")
        second.reply("answer")
        parts = [(part.value, part.index, part.delivery) for part in self.read(reply)]
        assert parts == [("a", 0, 1), ("a", 1, 2), ("b", 2, 2)]

    def test_parts_that_do_not_come_time_out(self) -> None:
        box = self.mailbox()
        reply = self.asked(box)
        self.emit(self.started(box), "only")
        with pytest.raises(ReplyTimeoutError):
            self.read(reply, timeout=0.05)
        with pytest.raises(ReplyTimeoutError):
            self.read(reply, start=1, timeout=0.05)

    def test_parts_end_with_a_cancel(self) -> None:
        box = self.mailbox()
        reply = self.asked(box)
        self.emit(self.started(box), "only")
        reading = background(self.read, reply, timeout=DEADLINE / 2)
        assert reply.cancel() is True
        assert [part.value for part in reading.result(DEADLINE)] == ["only"]
        with pytest.raises(ReplyCancelledError):
            reply.wait()
