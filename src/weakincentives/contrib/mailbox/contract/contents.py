"""Tests of a queue's contents: size limits, counts, peek, retention, repeated ids and purge."""

import pytest

from weakincentives.ids import SequelId
from weakincentives.runtime.mailbox.errors import MailboxFullError
from weakincentives.runtime.mailbox.seam.optional_protocols import keeps_ids

from .harness import LONG, Harness, refused, unique_name

__all__ = ["Contents"]

DAY = 86_400


class Contents(Harness):
    """Size limits, counts, peek, retention, repeated ids and purge work as documented."""

    def test_max_size_counts_pending_leased_and_delayed(self) -> None:
        box = self.mailbox(max_size=3)
        box.send("leased")
        leased = self.take_one(box)
        box.send("delayed", delay_seconds=LONG)
        box.send("pending")
        with pytest.raises(MailboxFullError, match="3"):
            box.send("over")
        with pytest.raises(MailboxFullError, match="3"):
            box.send_batch(["over"])
        assert box.approximate_count() == 3
        leased.acknowledge()
        box.send("fits")
        assert sorted(self.drain(box)) == ["fits", "pending"]

    def test_a_batch_that_does_not_fit_is_not_sent_at_all(self) -> None:
        box = self.mailbox(max_size=3)
        self.needs(box, "atomic_batches")
        box.send(1)
        with pytest.raises(MailboxFullError):
            box.send_batch([2, 3, 4])
        assert box.approximate_count() == 1
        box.send_batch([2, 3])
        assert self.drain(box) == [1, 2, 3]

    def test_a_nacked_message_needs_no_room(self) -> None:
        box = self.mailbox(max_size=1)
        box.send(1)
        assert self.take_one(box).nack() is True
        assert self.drain(box) == [1]

    def test_a_repeated_id_is_the_same_message_while_it_is_queued(self) -> None:
        box = self.mailbox(max_size=2)
        self.needs(box, "idempotent_send")
        assert box.send("first", message_id="job-1") == "job-1"
        assert box.send("second", message_id="job-1") == "job-1"
        message = self.take_one(box)
        assert (message.id, message.body) == ("job-1", "first")
        box.send("third", message_id="job-1")
        assert box.approximate_count() == 1
        message.nack()
        box.send("fourth", message_id="job-1")
        assert self.drain(box) == ["first"]

    def test_a_repeated_id_is_the_same_message_after_the_acknowledgement(self) -> None:
        box = self.mailbox()
        self.needs(box, "idempotent_send")
        box.send("first", message_id="job-1")
        self.take_one(box).acknowledge()
        assert box.send("again", message_id="job-1") == "job-1"
        assert box.send("other", message_id="job-2") == "job-2"
        assert self.drain(box) == ["other"]

    def test_a_repeated_id_needs_no_room(self) -> None:
        box = self.mailbox(max_size=1)
        self.needs(box, "idempotent_send")
        box.send(1, message_id="job-1")
        assert box.send(1, message_id="job-1") == "job-1"

    def test_an_id_is_forgotten_after_five_minutes(self) -> None:
        self.needs_fake_clock()
        box = self.mailbox()
        self.needs(box, "idempotent_send")
        box.send("first", message_id="job-1")
        self.take_one(box).acknowledge()
        self.elapse(299)
        box.send("same", message_id="job-1")
        assert box.receive() == []
        self.elapse(2)
        box.send("another", message_id="job-1")
        assert self.drain(box) == ["another"]

    def test_the_id_of_a_sequel_is_remembered_until_its_message_is_done(self) -> None:
        self.needs_fake_clock()
        box = self.mailbox()
        self.needs(box, "idempotent_send")
        self.needs(box, "remembers_sequels")
        for id in ("answer-1", "answer-2"):
            box.send("first", message_id=SequelId(id))
            self.take_one(box).acknowledge()
        self.elapse(13 * DAY)
        box.send("chosen", message_id="job-1")
        self.take_one(box).acknowledge()
        for id in ("answer-1", "answer-2"):
            box.send("same", message_id=SequelId(id))
        assert box.receive() == []
        if keeps_ids(box.raw.store):
            self.driver.call(box.raw.store.forget_soon, ["answer-1", "job-1", "unheard of"])
            self.elapse(299)
            box.send("same", message_id=SequelId("answer-1"))
            assert box.receive() == []
            self.elapse(2)
            box.send("another", message_id="answer-1")
            box.send("another", message_id="job-1")
            box.send("same", message_id="answer-2")
            assert self.drain(box) == ["another", "another"]
        self.elapse(2 * DAY)
        box.send("much later", message_id="answer-2")
        assert self.drain(box) == ["much later"]

    def test_an_id_belongs_to_its_queue(self) -> None:
        one, other = self.mailbox(), self.mailbox()
        self.needs(one, "idempotent_send")
        name = unique_name()
        one.send("one", message_id=name)
        other.send("other", message_id=name)
        assert (self.drain(one), self.drain(other)) == (["one"], ["other"])

    def test_purge_removes_everything(self) -> None:
        box = self.mailbox()
        self.fill(box, "leased", "pending")
        held = self.take_one(box)
        if box.capabilities.delays:
            box.send("delayed", delay_seconds=self.moment)
        removed = box.purge()
        if box.capabilities.exact_counts:
            assert removed == 3
            assert box.approximate_count() == 0
            assert box.purge() == 0
        assert box.receive() == []
        if box.capabilities.fenced:
            with refused():
                held.extend_visibility(self.moment)
        self.elapse(self.moment)
        assert box.receive() == []

    def test_purge_forgets_the_ids(self) -> None:
        box = self.mailbox()
        self.needs(box, "idempotent_send")
        self.needs(box, "purge_forgets_ids")
        box.send("queued", message_id="job-1")
        box.send("done", message_id="job-2")
        self.take(box, 2)[1].acknowledge()
        box.purge()
        box.send("again", message_id="job-1")
        box.send("again too", message_id="job-2")
        assert self.drain(box) == ["again", "again too"]

    def test_purge_kills_the_handles_and_leaves_no_ghosts(self) -> None:
        box = self.mailbox()
        self.needs(box, "fenced")
        self.fill(box, 1, 2, 3)
        acked, nacked, extended = self.take(box, 3, self.moment)
        box.purge()
        with refused():
            acked.acknowledge()
        with refused():
            nacked.nack()
        with refused():
            extended.extend_visibility(LONG)
        self.elapse(self.moment)
        assert box.receive() == []
        assert box.approximate_count() == 0
        box.send("fresh")
        assert self.drain(box) == ["fresh"]

    def test_stats_tell_the_states_apart(self) -> None:
        box = self.mailbox()
        self.needs(box, "exact_counts")
        assert box.stats().oldest_age_seconds is None
        self.fill(box, 1, 2, 3)
        if box.capabilities.delays:
            box.send(4, delay_seconds=LONG)
        held = self.take_one(box)
        stats = box.stats()
        delayed = int(box.capabilities.delays)
        assert (stats.pending, stats.in_flight, stats.delayed) == (2, 1, delayed)
        assert stats.oldest_age_seconds >= 0
        assert stats.total == box.approximate_count() == 3 + delayed
        held.acknowledge()
        assert box.stats().in_flight == 0

    def test_stats_count_an_ended_lease_as_pending(self) -> None:
        box = self.mailbox()
        self.needs(box, "exact_counts")
        box.send(1)
        self.take_one(box, self.moment)
        assert box.stats().in_flight == 1
        self.elapse(self.moment)
        stats = box.stats()
        assert (stats.pending, stats.in_flight) == (1, 0)
        assert stats.oldest_age_seconds > 0

    def test_peek_changes_nothing(self) -> None:
        box = self.mailbox()
        self.needs(box, "peeks")
        ids = [box.send(n, attributes={"n": str(n)}) for n in range(3)]
        for _ in range(2):
            seen = box.peek()
            assert [(one.id, one.body) for one in seen] == list(zip(ids, range(3), strict=True))
            assert [one.attributes for one in seen] == [{"n": "0"}, {"n": "1"}, {"n": "2"}]
            assert [one.delivery_count for one in seen] == [0, 0, 0]
        assert [one.body for one in box.peek(2)] == [0, 1]
        message = self.take_one(box)
        assert (message.body, message.delivery_count) == (0, 1)
        assert [one.body for one in box.peek()] == [1, 2]
        message.nack()
        assert [one.body for one in box.peek()] == [1, 2, 0]
        assert box.peek()[2].delivery_count == 1
        assert box.peek()[2].enqueued_at == message.enqueued_at

    def test_peek_sees_no_delayed_message(self) -> None:
        box = self.mailbox()
        self.needs(box, "peeks")
        box.send("later", delay_seconds=LONG)
        assert box.peek() == []

    def test_messages_older_than_the_retention_are_dropped(self) -> None:
        box = self.mailbox(default_ttl=self.moment * 3)
        self.fill(box, "old", "old and nacked")
        first, second = self.take(box, 2)
        second.nack()
        first.nack()
        self.elapse(self.moment * 4)
        box.send("young")
        message = self.take_one(box)
        assert message.body == "young"
        assert box.receive() == []
        assert box.approximate_count() == 1

    def test_a_lease_outlives_the_retention(self) -> None:
        box = self.mailbox(default_ttl=self.moment * 3)
        box.send("working")
        message = self.take_one(box)
        self.elapse(self.moment * 4)
        assert box.receive() == []
        assert message.acknowledge() is True

    def test_without_a_retention_messages_stay(self) -> None:
        self.needs_fake_clock()
        box = self.mailbox()
        box.send("patient")
        self.elapse(10 * 86_400)
        assert self.drain(box) == ["patient"]

    def test_attributes_come_with_the_message(self) -> None:
        box = self.mailbox()
        attributes = {"trace": "00-ab", "käse": "grün ☃", "empty": ""}
        box.send(1, attributes=attributes)
        box.send(2)
        with_some, without = sorted(self.take(box, 2), key=lambda message: message.body)
        assert dict(with_some.attributes) == attributes
        assert dict(without.attributes) == {}
        with_some.nack()
        assert dict(self.take_one(box).attributes) == attributes

    def test_attributes_are_the_senders_own_copy(self) -> None:
        box = self.mailbox()
        attributes = {"k": "before"}
        box.send(1, attributes=attributes)
        attributes["k"] = "after"
        assert dict(self.take_one(box).attributes) == {"k": "before"}
