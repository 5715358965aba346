"""The one loop, on mailboxes in memory."""

import asyncio
import math
import threading
import time
from contextvars import ContextVar

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import bodies, boom, drained, in_background
from weakincentives.contrib.mailbox.testing import FakeMailbox
from weakincentives.runtime import (
    Backoff,
    DLQConsumer,
    InMemoryMailbox,
    InProcessDispatcher,
    InvalidParameterError,
    LeaseExtenderConfig,
    MailboxConnectionError,
    ReplyCancelledError,
    Worker,
    WorkerConfig,
    current_lease,
)
from weakincentives.runtime.events import (
    JobFailed,
    JobFinished,
    JobGivenBack,
    JobSkipped,
    JobStarted,
    LoopEvent,
)
from weakincentives.runtime.mailbox.testing import driven

# --- success -------------------------------------------------------------------------------


def test_a_reply_is_sent_to_reply_to_and_the_message_is_gone(box, replies):
    box.send("a", reply_to=replies)
    drained(Worker(box, str.upper))
    assert bodies(replies) == ["A"]
    assert box.stats().total == 0


def test_a_waiting_caller_gets_the_reply(box):
    reply = box.send_expecting_reply("a")
    drained(Worker(box, str.upper))
    assert reply.wait(timeout=120) == "A"
    assert box.stats().total == 0


def test_a_caller_gets_none_if_the_handler_returns_none(box):
    reply = box.send_expecting_reply("a")
    drained(Worker(box, lambda body: None))
    assert reply.wait(timeout=120) is None


def test_nobody_asked_for_a_reply(box):
    box.send("a")
    seen = []
    drained(Worker(box, seen.append))
    assert seen == ["a"]
    assert box.stats().total == 0


def test_responses_are_for_messages_that_name_neither(box, replies):
    fallback = InMemoryMailbox("fallback")
    box.send("a", reply_to=replies)
    box.send("b")
    reply = box.send_expecting_reply("c")
    drained(Worker(box, str.upper, responses=fallback), 3)
    assert bodies(replies) == ["A"]
    assert bodies(fallback) == ["B"]
    assert reply.wait(timeout=120) == "C"


def test_async_handlers(box, replies):
    async def handler(body):
        await asyncio.sleep(0)
        current_lease().raise_if_lost()
        return body * 2

    for body in (1, 2, 3):
        box.send(body, reply_to=replies)
    drained(Worker(box, handler), 3)
    assert bodies(replies) == [2, 4, 6]


@pytest.mark.parametrize("concurrency", [1, 3])
@pytest.mark.parametrize("batch", [1, 7])
def test_every_message_is_handled_once(box, replies, concurrency, batch):
    for n in range(100):
        box.send(n, reply_to=replies)
    worker = Worker(
        box, lambda n: n * 10, config=WorkerConfig(concurrency=concurrency, batch=batch)
    )
    with in_background(worker):
        eventually(lambda: replies.stats().pending == 100)
    assert sorted(bodies(replies)) == [n * 10 for n in range(100)]
    assert box.stats().total == 0


def test_the_answer_of_a_batch_does_not_wait_for_its_end(box, replies):
    reached, go = threading.Event(), threading.Event()

    def handler(n):
        if n == 1:
            reached.set()
            assert go.wait(120)
        return n

    for n in range(3):
        box.send(n, reply_to=replies)
    with in_background(Worker(box, handler, config=WorkerConfig(batch=3))):
        assert reached.wait(120)
        assert bodies(replies) == [0]
        go.set()
        eventually(lambda: box.stats().total == 0)


def test_concurrency_runs_jobs_side_by_side(box):
    barrier = threading.Barrier(4, timeout=60)
    for n in range(8):
        box.send(n)
    with in_background(Worker(box, lambda n: barrier.wait(), config=WorkerConfig(concurrency=4))):
        eventually(lambda: box.stats().total == 0)


def test_run_may_be_called_from_several_threads(box):
    barrier = threading.Barrier(3, timeout=60)
    worker = Worker(box, lambda n: barrier.wait())
    for n in range(9):
        box.send(n)
    with in_background(worker), in_background(worker), in_background(worker):
        eventually(lambda: box.stats().total == 0)


# --- context ------------------------------------------------------------------------------------

TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_a_job_sees_the_context_of_the_run_and_no_other_jobs(box, kind, concurrency):
    seen = []
    barrier = threading.Barrier(concurrency, timeout=60)

    def plain(body):
        seen.append(TENANT.get())
        TENANT.set(f"tenant of {body}")
        barrier.wait()

    async def asynchronous(body):
        await asyncio.to_thread(plain, body)  # so that so many are at work at once
        TENANT.set(f"tenant of {body}")

    box.send_batch(list(range(4 * concurrency)))
    worker = Worker(
        box,
        plain if kind == "plain" else asynchronous,
        config=WorkerConfig(concurrency=concurrency, batch=2),
    )

    def serve():
        TENANT.set("the run's")
        worker.run()

    thread = threading.Thread(target=serve)
    thread.start()
    eventually(lambda: box.stats().total == 0)
    assert worker.shutdown(timeout=60)
    thread.join(120)
    assert seen == ["the run's"] * 4 * concurrency


# --- iterations and the end ----------------------------------------------------------------


@pytest.mark.parametrize("sent", [0, 1, 5])
def test_an_iteration_is_a_receive_empty_or_not(box, sent):
    seen = []
    for n in range(sent):
        box.send(n)
    worker = Worker(box, seen.append)
    worker.run(max_iterations=3, wait_time_seconds=0)
    assert len(seen) == min(sent, 3)
    assert box.stats().total == sent - len(seen)
    assert not worker.running


def test_failed_receives_are_iterations_too():
    box = FakeMailbox()
    box.set_connection_error(MailboxConnectionError("down"))
    Worker(box, str).run(max_iterations=2)


def test_shutdown_before_run_counts_and_is_final(box):
    box.send("a")
    worker = Worker(box, str)
    assert worker.shutdown(timeout=0) is True
    worker.run()
    assert worker.shutdown() is True
    worker.run()
    assert box.stats().pending == 1


@pytest.mark.parametrize("concurrency", [1, 4])
def test_shutdown_ends_a_long_poll_within_a_second(box, concurrency):
    worker = Worker(box, str, config=WorkerConfig(concurrency=concurrency))
    thread = threading.Thread(target=worker.run, kwargs={"wait_time_seconds": 20})
    thread.start()
    eventually(lambda: worker.running)
    started = time.monotonic()
    assert worker.shutdown(timeout=30)
    thread.join(120)
    assert time.monotonic() - started < 15
    assert not worker.running


def test_shutdown_ends_only_its_own_long_poll(box):
    one, other = Worker(box, str), Worker(box, str)
    with in_background(other, wait_time_seconds=20) as thread:
        with in_background(one, wait_time_seconds=20):
            eventually(lambda: one.running and other.running)
        assert thread.is_alive()
        box.send("a")
        eventually(lambda: box.stats().total == 0)


def test_a_closed_mailbox_ends_the_loop(box):
    worker = Worker(box, str)
    thread = threading.Thread(target=worker.run)
    thread.start()
    eventually(lambda: worker.running)
    box.close()
    thread.join(120)
    assert not thread.is_alive()


def test_shutdown_from_a_handler_does_not_wait_for_itself(box, replies):
    box.send("a", reply_to=replies)
    box.send("b")
    worker = Worker(box, lambda body: worker.shutdown(timeout=60))
    worker.run()
    assert bodies(replies) == [False]
    assert box.stats().pending == 1


def test_what_was_not_started_is_given_back_at_once(box):
    started, go = threading.Event(), threading.Event()

    def handler(body):
        started.set()
        assert go.wait(120)

    for n in range(5):
        box.send(n)
    worker = Worker(box, handler, config=WorkerConfig(batch=5))
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert started.wait(120)
    worker.shutdown(timeout=0)
    go.set()
    thread.join(120)
    stats = box.stats()
    assert (stats.pending, stats.in_flight, stats.delayed) == (4, 0, 0)


def test_what_is_unfinished_at_the_deadline_is_given_back_and_its_result_dropped(box, replies):
    started, go = threading.Event(), threading.Event()

    def handler(body):
        started.set()
        assert go.wait(120)
        return current_lease().lost

    box.send("a", reply_to=replies)
    worker = Worker(box, handler)
    thread = threading.Thread(target=worker.run)
    thread.start()
    assert started.wait(120)
    assert worker.shutdown(timeout=0.05) is False
    (again,) = box.receive()
    go.set()
    thread.join(120)
    assert bodies(replies) == []
    assert again.delivery_count == 1  # cut off by the end, which does not count
    assert again.acknowledge()


def test_a_job_may_run_its_own_loop(box):
    """As one that has to wait for a job of the same queue may do."""
    done = []

    def handler(body):
        if body == "outer":
            worker.run(max_iterations=1, wait_time_seconds=0)
        done.append(body)

    box.send_batch(["outer", "inner"])
    worker = Worker(box, handler)
    worker.run(max_iterations=1, wait_time_seconds=0)
    assert done == ["inner", "outer"]
    assert box.approximate_count() == 0
    assert worker.shutdown(timeout=0)


def test_misuse_comes_out_of_run(box):
    with pytest.raises(InvalidParameterError, match="visibility_timeout"):
        Worker(box, str).run(visibility_timeout=-1)
    with pytest.raises(InvalidParameterError, match="concurrency"):
        WorkerConfig(concurrency=0)
    with pytest.raises(InvalidParameterError, match="error_detail"):
        WorkerConfig(error_detail="all")


@pytest.mark.parametrize("value", [-1, "5", None, math.inf, True])
@pytest.mark.parametrize("name", ["visibility_timeout", "wait_time_seconds"])
def test_misuse_of_a_mailbox_of_another_kind_is_told_as_clearly(name, value):
    class Foreign:
        def receive(self, **options):
            raise AssertionError("nothing must be asked for")

    with pytest.raises(InvalidParameterError, match=name):
        Worker(Foreign(), str).run(**{name: value})


@pytest.mark.parametrize("value", [0, 0.0, 0.01])
def test_a_lease_that_is_over_at_once_is_refused(box, value):
    """A message would be given to the next receive while its job runs, thousands of times."""
    ran = []
    box.send("a")
    with pytest.raises(InvalidParameterError, match="visibility_timeout"):
        Worker(box, ran.append).run(visibility_timeout=value, max_iterations=3)
    assert ran == []


def test_a_consumer_of_dead_letters_refuses_such_a_lease_too(box):
    consumer = DLQConsumer(mailbox=box, handler=str)
    with pytest.raises(InvalidParameterError, match="visibility_timeout"):
        consumer.run(visibility_timeout=0, max_iterations=1, wait_time_seconds=0)


# --- replies that nobody waits for ----------------------------------------------------------


def test_cancelled_work_is_skipped_and_acknowledged(box):
    reply = box.send_expecting_reply("a")
    reply.cancel()
    ran = []
    drained(Worker(box, ran.append))
    assert ran == []
    assert box.stats().total == 0
    with pytest.raises(ReplyCancelledError):
        reply.wait(timeout=1)


def test_expired_work_is_skipped_and_acknowledged():
    box = FakeMailbox()
    box.send_expecting_reply("a", reply_timeout=10)
    box.advance(11)
    ran = []
    drained(Worker(box, ran.append))
    assert ran == []
    assert box.stats().total == 0


def test_a_redelivered_job_answers_once(box, replies):
    """Killed between reply and ack: the same answer is sent again and is the same message."""
    box.send("a", reply_to=replies)
    worker = Worker(box, str.upper)
    original = box.store.lease

    async def lost(handles):
        return [False for _ in handles]

    box.store.lease = lambda count, seconds, acknowledge=(), ids=None: original(count, seconds)
    box.store.acknowledge = lost
    worker.run(max_iterations=1, wait_time_seconds=0, visibility_timeout=0.05)
    del box.store.lease, box.store.acknowledge
    eventually(lambda: box.stats().pending == 1)
    drained(worker)
    assert bodies(replies) == ["A"]
    assert box.stats().total == 0


# --- leases ---------------------------------------------------------------------------------


def test_a_lost_lease_settles_nothing(replies):
    box = FakeMailbox()
    box.send("a", reply_to=replies)

    def handler(body):
        box.advance(301)
        return current_lease().lost

    drained(
        Worker(box, handler, config=WorkerConfig(lease_extender=LeaseExtenderConfig(enabled=False)))
    )
    assert bodies(replies) == []
    (again,) = box.receive()
    assert again.delivery_count == 2


def test_a_handler_can_stop_when_its_lease_is_lost():
    box = FakeMailbox()
    box.send("a")
    seen = []

    def handler(body):
        lease = current_lease()
        assert not lease.lost
        lease.raise_if_lost()
        assert 59 < lease.remaining() <= 60
        box.expire_handle(lease.message.receipt_handle)
        box.advance(300)
        seen.append(lease.lost)
        lease.raise_if_lost()

    drained(Worker(box, handler))
    assert seen == [True]
    assert box.stats().pending == 1


def test_leases_are_kept_also_while_messages_wait_their_turn(box):
    for n in range(3):
        box.send(n)
    counts = []

    def handler(n):
        time.sleep(0.5)
        counts.append(current_lease().message.delivery_count)

    worker = Worker(box, handler, config=WorkerConfig(batch=3))
    worker.run(max_iterations=1, visibility_timeout=1.2)
    assert counts == [1, 1, 1]
    assert box.stats().total == 0
    assert worker.lease_extender.counters.extended >= 3
    assert worker.lease_extender.counters.held == 0


# --- other people's mailboxes ---------------------------------------------------------------


class Note:
    """A message with next to nothing."""

    def __init__(self, body):
        self.id = f"note-{body}"
        self.body = body
        self.acknowledged = 0

    def extend_visibility(self, timeout):
        return True

    def acknowledge(self):
        self.acknowledged += 1


class Notes:
    """A mailbox that can only receive."""

    def __init__(self, *notes):
        self.notes = list(notes)

    def receive(self, *, max_messages, visibility_timeout, wait_time_seconds):
        taken, self.notes = self.notes[:max_messages], self.notes[max_messages:]
        if not taken:
            time.sleep(min(wait_time_seconds, 0.01))
        return taken


def test_anybodys_mailbox_will_do():
    notes = [Note(n) for n in range(3)]
    seen = []
    worker = Worker(Notes(*notes), seen.append, config=WorkerConfig(batch=2))
    with in_background(worker):
        eventually(lambda: all(note.acknowledged for note in notes))
    assert seen == [0, 1, 2]
    assert [note.acknowledged for note in notes] == [1, 1, 1]


def test_anybodys_failed_message_is_left_to_its_lease():
    note = Note("a")
    Worker(Notes(note), boom).run(max_iterations=2, wait_time_seconds=0)
    assert note.acknowledged == 0


# --- events ---------------------------------------------------------------------------------


def test_events_tell_the_story(box):
    events = InProcessDispatcher()
    told = []
    events.subscribe(LoopEvent, lambda event: told.append(type(event)))
    config = WorkerConfig(dispatcher=events, backoff=Backoff(base=0, cap=0), batch=3)
    box.send(1)
    box.send(0)
    unwanted = box.send_expecting_reply(2)
    assert driven(box._reply_table.cancel(unwanted.id))
    worker = Worker(box, lambda n: 1 / n, config=config)
    drained(worker)
    assert told == [JobStarted, JobFinished, JobStarted, JobFailed, JobSkipped]
    told.clear()
    worker = Worker(box, lambda n: worker.shutdown(), config=config)
    box.send(3)
    worker.run()
    assert told == [JobStarted, JobFinished, JobGivenBack]


def test_the_heartbeat_beats(box):
    worker = Worker(box, str)
    assert worker.heartbeat.trouble(60) is not None
    drained(worker)
    assert worker.heartbeat.trouble(60) is None
    assert worker.heartbeat.elapsed() < 60


def test_concurrency_is_how_many_jobs_run_at_once(box):
    together = threading.Barrier(8, timeout=60)
    box.send_batch([None] * 16)
    with in_background(Worker(box, lambda _: together.wait(), config=WorkerConfig(concurrency=8))):
        eventually(lambda: box.stats().total == 0, within=120)
    assert not together.broken
