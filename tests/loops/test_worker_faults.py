"""The one loop when a job fails, and when its mailbox does."""

import asyncio
import sys
import threading
import time

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import NO_WAIT, bodies, boom, drained, explain, in_background
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.testing import FakeClock, FakeMailbox
from weakincentives.runtime import (
    Backoff,
    CompositeResolver,
    DLQPolicy,
    InMemoryMailbox,
    InProcessDispatcher,
    MailboxConnectionError,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.events import JobAbandoned, JobFinished, MailboxUnreachable
from weakincentives.runtime.mailbox import Message
from weakincentives.runtime.worker import settle
from weakincentives.runtime.worker.quarantine import QUARANTINE

# --- failure ------------------------------------------------------------------------------


def test_a_failure_that_can_be_told_is_told_and_acknowledged(box, replies):
    box.send("a", reply_to=replies)
    reply = box.send_expecting_reply("b")
    drained(Worker(box, boom, error_reply=explain), 2)
    (text,) = bodies(replies)
    assert text.startswith("ValueError (ref ")
    assert "cannot do" not in text
    assert reply.wait(timeout=120).startswith("ValueError (ref ")
    assert box.stats().total == 0


def test_the_text_of_an_error_is_told_only_if_the_config_says_so(box, replies):
    box.send("a", reply_to=replies)
    drained(Worker(box, boom, error_reply=explain, config=WorkerConfig(error_detail="text")))
    assert bodies(replies)[0].startswith("ValueError: cannot do a (ref ")


@pytest.mark.parametrize("ask", ["nobody", "reply_to"])
def test_without_somebody_to_tell_a_failure_is_retried(box, replies, ask):
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
        assert reply.wait(timeout=120) == "A"
        eventually(lambda: box.stats().total == 0)
    assert ran == ["a"]


def test_an_acknowledgement_that_was_cut_off_but_has_happened_is_a_success(caplog):
    box = FakeMailbox()
    box.send("a")
    abandoned = []
    events = InProcessDispatcher()
    events.subscribe(JobAbandoned, abandoned.append)
    lease = box.store.lease

    async def cut_off(count, seconds, *, acknowledge=(), ids=None):
        leases = await lease(count, seconds, acknowledge=acknowledge, ids=ids)
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
    awaits_reply = Message._awaits_reply
    failures = []

    async def unreachable(self):
        if failures:
            return await awaits_reply(self)
        failures.append(1)
        raise MailboxConnectionError("down")

    monkeypatch.setattr(Message, "_awaits_reply", unreachable)
    with in_background(Worker(box, str.upper, error_reply=explain)):
        assert reply.wait(timeout=120) == "A"


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


# --- events -----------------------------------------------------------------------------------


class Broken:
    """A dispatcher that always raises."""

    def __init__(self):
        self.told = 0

    def dispatch(self, event):
        self.told += 1
        raise RuntimeError("out of order")


@pytest.mark.parametrize("whose", ["loop's", "mailbox's"])
def test_a_dispatcher_that_raises_stops_nobody(whose, replies, caplog):
    dispatcher = Broken()
    own = {"dispatcher": dispatcher}
    box = InMemoryMailbox("jobs", **(own if whose == "mailbox's" else {}))
    letters = InMemoryMailbox("dead")
    box.send_batch(["good", "bad", "unwanted", "good"], reply_to=replies)
    box.send_expecting_reply("cancelled").cancel()
    worker = Worker(
        box,
        lambda body: 1 / 0 if body == "bad" else body,
        dlq=DLQPolicy(letters, max_delivery_count=2),
        config=WorkerConfig(
            batch=5, backoff=Backoff(base=0, cap=0), **(own if whose == "loop's" else {})
        ),
    )
    with in_background(worker):
        eventually(lambda: letters.stats().total == 1 and box.stats().total == 0)
    assert bodies(replies) == ["good", "unwanted", "good"]
    assert dispatcher.told > 4
    assert caplog.text.count("Broken.dispatch() failed") <= 1


def test_a_dispatcher_that_raises_does_not_keep_leases_from_being_extended():
    box = InMemoryMailbox("jobs", dispatcher=Broken())
    box.send_batch([1, 2, 3])
    go = threading.Event()
    worker = Worker(box, lambda body: go.wait(60), config=WorkerConfig(batch=3))
    with in_background(worker, visibility_timeout=1.2):
        # beyond the length of all three leases
        eventually(lambda: worker.lease_extender.counters.extended >= 15)
        assert worker.lease_extender.counters.lost == 0
        assert box.stats().in_flight == 3
        go.set()
        eventually(lambda: box.stats().total == 0)


def test_a_mailbox_lost_after_an_answer_went_out_fails_no_job(tmp_path, monkeypatch):
    path = tmp_path / "jobs.db"
    jobs, replies, letters = (SQLiteMailbox(name, path) for name in ("jobs", "replies", "letters"))
    jobs.send("a", reply_to=replies)
    ran, waits, listen = [], [], jobs.store.listen

    def upper(body):
        ran.append(body)
        return body.upper()

    def listen_after_a_cut(**options):
        if ran:
            waits.append(1)
            if len(waits) == 1:
                raise MailboxConnectionError("cut off")
        return listen(**options)

    monkeypatch.setattr(jobs.store, "listen", listen_after_a_cut)
    worker = Worker(jobs, upper, dlq=DLQPolicy(letters, max_delivery_count=1))
    with in_background(worker, wait_time_seconds=20):
        eventually(lambda: len(waits) > 1)
    assert ran == ["a"]
    assert bodies(replies) == ["A"]
    assert letters.stats().total == jobs.stats().total == 0


def test_a_mailbox_lost_before_a_job_that_runs_alone_ends_no_loop(box, monkeypatch):
    letters = InMemoryMailbox("letters")
    box.send("a")
    box.receive(visibility_timeout=0.001)  # its worker dies
    eventually(lambda: box.stats().pending)
    release, lease, cuts, ran = box.store.release, box.store.lease, [], []

    def release_and_be_cut_off(*args):
        monkeypatch.setattr(box.store, "lease", cut_off)
        return release(*args)

    def cut_off(*args, **options):
        monkeypatch.setattr(box.store, "lease", lease)
        cuts.append(1)
        raise MailboxConnectionError("cut off")

    monkeypatch.setattr(box.store, "release", release_and_be_cut_off)
    worker = Worker(box, ran.append, dlq=DLQPolicy(letters, max_delivery_count=2))
    with in_background(worker, wait_time_seconds=0.1):
        eventually(lambda: cuts)
        monkeypatch.setattr(box.store, "release", release)
        eventually(lambda: ran)
    assert box.stats().total == letters.stats().total == 0


def test_a_loop_beats_while_a_job_of_another_loop_runs_alone(box):
    class Hands:
        in_event_loop = False

        def is_busy(self):
            return False

        def beat(self):
            pass

    alone, worker = Hands(), Worker(box, print)
    assert QUARANTINE.begin(alone, worker._stop)
    try:
        with in_background(worker):
            eventually(lambda: worker.running)
            for _ in range(3):
                last = worker.heartbeat.last
                eventually(lambda last=last: worker.heartbeat.last > last)
            assert not worker.heartbeat.reaches
    finally:
        QUARANTINE.end(alone)


def test_a_loop_inside_a_job_that_runs_alone_goes_on_at_once(box):
    """Also in the threads of that loop, and for a message that must run alone itself."""
    letters, inner = InMemoryMailbox("letters"), InMemoryMailbox("inner")
    for place in (box, inner):
        place.send("crashed")
        place.receive(visibility_timeout=0.001)  # its worker dies
        eventually(lambda place=place: place.stats().pending)
    inner.send_batch(["b", "c"])
    policy = DLQPolicy(letters, max_delivery_count=2)
    done, took = [], []

    def handler(body):
        assert QUARANTINE.owner is not None
        began = time.monotonic()
        Worker(inner, done.append, dlq=policy, config=WorkerConfig(concurrency=2)).run(
            max_iterations=8, wait_time_seconds=0
        )
        took.append(time.monotonic() - began)

    Worker(box, handler, dlq=policy).run(max_iterations=1, wait_time_seconds=0)
    assert sorted(done) == ["b", "c", "crashed"]
    assert took[0] < 60


def test_a_full_disk_that_the_answer_goes_to_is_not_the_jobs_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(settle, "SETTLE_RETRY_SECONDS", 0.0)
    jobs = SQLiteMailbox("jobs", tmp_path / "jobs.db", body_type=str)
    replies = SQLiteMailbox("replies", tmp_path / "replies.db")
    letters = InMemoryMailbox("letters")
    replies.send("x" * 1000)
    file = replies.store._database.file
    pages = file.writer.execute("PRAGMA max_page_count").get
    file.writer.execute("PRAGMA max_page_count = 1")
    jobs.send("a" * 100_000)
    ran = []

    def handler(body):
        ran.append(body)
        return body

    policy = DLQPolicy(letters, max_delivery_count=1)
    worker = Worker(jobs, handler, responses=replies, dlq=policy, config=NO_WAIT)
    worker.run(max_iterations=3, wait_time_seconds=0)
    assert len(ran) == 3
    assert letters.stats().total == 0
    assert [waiting.delivery_count for waiting in jobs.peek()] == [0]
    file.writer.execute(f"PRAGMA max_page_count = {pages}")
    worker = Worker(jobs, handler, responses=replies, dlq=policy, config=NO_WAIT)
    worker.run(max_iterations=1, wait_time_seconds=0)
    assert replies.stats().total == 2
    assert jobs.stats().total == letters.stats().total == 0
