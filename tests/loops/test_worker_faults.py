"""The one loop when a job fails, and when its mailbox does."""

import asyncio
import sys
import threading
import time

import pytest

from tests.loops.helpers import NO_WAIT, bodies, boom, drained, explain, in_background
from tests.support.waiting import eventually
from weakincentives.contrib.mailbox.testing import FakeClock, FakeMailbox
from weakincentives.runtime import (
    Backoff,
    CompositeResolver,
    InMemoryMailbox,
    InProcessDispatcher,
    MailboxConnectionError,
    ReplyChannel,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.events import (
    JobAbandoned,
    JobFinished,
    MailboxUnreachable,
)

# --- failure ------------------------------------------------------------------------------


def test_a_failure_that_can_be_told_is_told_and_acknowledged(box, replies):
    box.send("a", reply_to=replies)
    reply = box.send_expecting_reply("b")
    drained(Worker(box, boom, error_reply=explain), 2)
    (text,) = bodies(replies)
    assert text.startswith("ValueError (ref ")
    assert "cannot do" not in text
    assert reply.wait(timeout=5).startswith("ValueError (ref ")
    assert box.stats().total == 0


def test_the_text_of_an_error_is_told_only_if_the_config_says_so(box, replies):
    box.send("a", reply_to=replies)
    drained(Worker(box, boom, error_reply=explain, config=WorkerConfig(error_detail="text")))
    assert bodies(replies)[0].startswith("ValueError: cannot do a (ref ")


@pytest.mark.parametrize("ask", ["nobody", "reply_to", "channel"])
def test_without_somebody_to_tell_a_failure_is_retried(box, replies, ask):
    if ask == "channel":
        box.send_expecting_reply("a")
    else:
        box.send("a", reply_to=replies if ask == "reply_to" else None)
    # error_reply only matters if the sender can be reached
    worker = Worker(box, boom, error_reply=explain if ask == "nobody" else None)
    drained(worker)
    stats = box.stats()
    assert (stats.pending + stats.delayed, stats.in_flight) == (1, 0)
    assert bodies(replies) == []


def test_a_retry_waits_as_the_backoff_says():
    box = FakeMailbox()
    box.send("a")
    worker = Worker(box, boom, config=WorkerConfig(backoff=Backoff(base=10, cap=15, jitter=False)))
    for wait in (10, 15, 15):
        drained(worker)
        assert box.stats().delayed == 1
        box.advance(wait - 1)
        assert box.stats().delayed == 1
        box.advance(1)
        assert box.stats().pending == 1


def test_a_reply_that_cannot_be_written_fails_the_job(replies):
    box = InMemoryMailbox("jobs", serialize=True)
    replies = InMemoryMailbox("replies", serialize=True)
    box.send("a", reply_to=replies)
    drained(Worker(box, lambda body: object(), error_reply=explain))
    assert bodies(replies)[0].startswith("SerializationError (ref ")
    assert box.stats().total == 0


def test_an_error_reply_that_cannot_be_sent_leads_to_a_retry(box):
    full = InMemoryMailbox("full", max_size=1)
    full.send("in the way")
    box.send("a", reply_to=full)
    drained(Worker(box, boom, error_reply=explain, config=NO_WAIT))
    assert box.stats().pending == 1


def test_an_error_reply_that_raises_leads_to_a_retry(box, replies):
    box.send("a", reply_to=replies)
    drained(Worker(box, boom, error_reply=lambda failure: 1 / 0, config=NO_WAIT))
    assert box.stats().pending == 1


def test_an_id_that_is_used_again_gets_an_answer_of_its_own():
    clock = FakeClock()
    box, replies = InMemoryMailbox("jobs", clock=clock), InMemoryMailbox("replies", clock=clock)
    worker = Worker(box, str.upper)
    box.send("first", message_id="x", reply_to=replies)
    clock.advance(290)  # the answer is remembered from here on, the question since 290 s
    drained(worker)
    clock.advance(15)
    box.send("second", message_id="x", reply_to=replies)
    drained(worker)
    assert bodies(replies) == ["FIRST", "SECOND"]


def test_an_unknown_reply_to_is_found_before_the_job_runs(replies):
    box = InMemoryMailbox("jobs", reply_resolver=CompositeResolver({}))
    box.send("a", reply_to=replies)
    # as it would come from another process
    for entry in box.store._entries.values():
        entry.payload.reply_to = "replies"
    ran = []
    drained(Worker(box, ran.append, error_reply=explain, config=NO_WAIT))
    assert ran == []
    assert box.stats().pending == 1


def test_system_exit_ends_the_loop_and_acknowledges_nothing(box):
    box.send("a")
    box.send("b")
    worker = Worker(box, lambda body: sys.exit(3), config=WorkerConfig(batch=2))
    with pytest.raises(SystemExit):
        worker.run()
    stats = box.stats()
    assert (stats.pending + stats.delayed, stats.in_flight) == (2, 0)


def test_system_exit_in_another_thread_comes_out_of_run(box):
    for n in range(20):
        box.send(n)

    def handler(body):
        if threading.current_thread() is not threading.main_thread():
            sys.exit(4)
        time.sleep(0.001)

    with pytest.raises(SystemExit) as caught:
        Worker(box, handler, config=WorkerConfig(concurrency=4)).run()
    assert caught.value.code == 4


def test_ctrl_c_gives_the_job_back_at_once(box):
    box.send("a")

    def handler(body):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Worker(box, handler).run()
    assert box.stats().pending == 1


def test_a_cancelled_handler_is_a_failed_job(box):
    async def handler(body):
        raise asyncio.CancelledError

    box.send("a")
    drained(Worker(box, handler, config=NO_WAIT))
    assert box.stats().pending == 1


# --- transport ------------------------------------------------------------------------------


def test_a_loop_outlives_its_mailbox(caplog):
    box = FakeMailbox()
    box.set_connection_error(MailboxConnectionError("down"))
    events = InProcessDispatcher()
    unreachable = []
    events.subscribe(MailboxUnreachable, unreachable.append)
    seen = []
    with in_background(Worker(box, seen.append, config=WorkerConfig(dispatcher=events))):
        eventually(lambda: unreachable)
        box.set_connection_error(None)
        box.send("a")
        eventually(lambda: seen == ["a"])
    assert unreachable[0].error_type.endswith("MailboxConnectionError")
    assert box.stats().total == 0


def test_a_result_waits_for_a_mailbox_that_is_away(caplog):
    box = FakeMailbox()
    reply = box.send_expecting_reply("a")
    ran = []

    def handler(body):
        ran.append(body)
        box.set_connection_error(MailboxConnectionError("down"))
        return "A"

    with in_background(Worker(box, handler)):
        eventually(lambda: "cannot be settled yet" in caplog.text)
        box.set_connection_error(None)
        assert reply.wait(timeout=10) == "A"
        eventually(lambda: box.stats().total == 0)
    assert ran == ["a"]


def test_an_acknowledgement_that_was_cut_off_but_has_happened_is_a_success(caplog):
    box = FakeMailbox()
    box.send("a")
    abandoned = []
    events = InProcessDispatcher()
    events.subscribe(JobAbandoned, abandoned.append)
    lease = box.store.lease

    def cut_off(count, seconds, *, acknowledge=(), ids=None):
        leases = lease(count, seconds, acknowledge=acknowledge, ids=ids)
        if acknowledge:
            box.store.lease = lease
            raise MailboxConnectionError("cut off")
        return leases

    box.store.lease = cut_off
    with in_background(Worker(box, str, config=WorkerConfig(dispatcher=events))):
        eventually(lambda: box.store.lease is lease)
        eventually(lambda: box.stats().total == 0)
    assert abandoned == []


def test_a_caller_that_cannot_be_asked_about_is_not_a_failure(box, monkeypatch):
    """Nobody knows whether the reply is still wanted: later, then, and nothing is told."""
    reply = box.send_expecting_reply("a")
    is_open = ReplyChannel.is_open
    failures = []

    def unreachable(self):
        if failures:
            return is_open(self)
        failures.append(1)
        raise MailboxConnectionError("down")

    monkeypatch.setattr(ReplyChannel, "is_open", unreachable)
    with in_background(Worker(box, str.upper, error_reply=explain)):
        assert reply.wait(timeout=10) == "A"


def test_an_answer_after_the_lease_is_lost_is_not_sent(replies):
    """Lost after the handler has returned and before its answer goes out with the next receive."""
    box = FakeMailbox()
    box.send("a", reply_to=replies)
    abandoned = []
    events = InProcessDispatcher()
    events.subscribe(JobAbandoned, abandoned.append)
    events.subscribe(JobFinished, lambda event: box.advance(301))
    drained(Worker(box, str.upper, config=WorkerConfig(dispatcher=events)))
    assert bodies(replies) == []
    assert len(abandoned) == 1
    assert box.stats().pending == 1
