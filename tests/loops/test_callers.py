"""Every caller is told what became of its job: value, failure, cancelled or expired."""

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import replace

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import boom, drained, explain, in_background
from weakincentives import connect
from weakincentives.runtime import (
    Backoff,
    DLQPolicy,
    InProcessDispatcher,
    JobCancelledError,
    JobState,
    LeaseExtenderConfig,
    MailboxFullError,
    ReplyCancelledError,
    ReplyFailedError,
    ReplyTimeoutError,
    SerializationError,
    Worker,
    WorkerConfig,
    replay_dead_letters,
)
from weakincentives.runtime.dead_letters.replay import Replay
from weakincentives.runtime.events import JobCancelled
from weakincentives.runtime.leases.extender import LeaseExtender
from weakincentives.runtime.leases.scheduler import LeaseScheduler
from weakincentives.runtime.worker.settle import OutcomeExecutor

AT_ONCE = WorkerConfig(backoff=Backoff(base=0, cap=0))
DEADLINE = 60.0


@pytest.fixture
def box(backend):
    return backend.mailbox("jobs")


@pytest.fixture
def dead(backend):
    return backend.mailbox("dead")


def fail(body, job):
    raise ValueError(f"cannot do {body}")


# --- failures ---------------------------------------------------------------------------------


def test_a_failure_is_told_at_once_without_a_policy(box, made):
    reply = box.send_expecting_reply("tea")
    drained(Worker(box, made(fail)))
    assert box.stats().total == 0
    with pytest.raises(ReplyFailedError, match="ValueError") as caught:
        reply.wait(timeout=DEADLINE)
    assert caught.value.error_type.endswith("ValueError")
    assert caught.value.reference
    assert (caught.value.detail, caught.value.dead_letter_id) == (None, None)
    assert reply.status().state == JobState.FAILED
    with pytest.raises(ReplyFailedError):
        reply.poll()
    assert reply.is_ready()


def test_the_text_of_a_failure_is_told_only_if_the_config_says_so(box, made):
    reply = box.send_expecting_reply("tea")
    drained(Worker(box, made(fail), config=WorkerConfig(error_detail="text")))
    with pytest.raises(ReplyFailedError, match="cannot do tea") as caught:
        reply.wait(timeout=DEADLINE)
    assert caught.value.detail == "cannot do tea"


def test_a_failure_is_told_when_the_message_is_dead_lettered(box, dead, made):
    reply = box.send_expecting_reply("tea", keep=600)
    worker = Worker(box, made(fail), dlq=DLQPolicy(dead, max_delivery_count=2), config=AT_ONCE)
    drained(worker)
    assert reply.status().state in (JobState.RETRYING, JobState.QUEUED)
    drained(worker)
    with pytest.raises(ReplyFailedError) as caught:
        reply.wait(timeout=DEADLINE)
    (letter,) = dead.peek()
    assert caught.value.dead_letter_id == letter.id
    assert letter.body.reply_id == reply.id
    assert (letter.body.reply_timeout, letter.body.reply_keep) == (300, 600)


def test_an_error_reply_is_the_value_of_a_failure(box, dead, made):
    reply = box.send_expecting_reply("tea", keep=600)
    dlq = DLQPolicy(dead, max_delivery_count=1)
    drained(Worker(box, made(fail), dlq=dlq, error_reply=explain))
    assert reply.wait(timeout=DEADLINE).startswith("Dead-lettered after 1 attempt: ValueError")
    assert reply.status().state == JobState.FAILED


@pytest.mark.parametrize("policy", ["with a policy", "without"])
@pytest.mark.parametrize(
    "error_reply",
    [lambda failure: 1 / 0, lambda failure: object(), lambda failure: "x" * 3_000_000],
    ids=["it raises", "it cannot be encoded", "it is too large"],
)
def test_an_error_reply_that_fails_leaves_a_failure(tmp_path, error_reply, policy):
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box, dead = backend.mailbox("jobs"), backend.mailbox("dead")
        reply = box.send_expecting_reply("tea")
        dlq = DLQPolicy(dead, max_delivery_count=1) if policy == "with a policy" else None
        with in_background(Worker(box, boom, dlq=dlq, error_reply=error_reply)):
            with pytest.raises(ReplyFailedError, match="ValueError"):
                reply.wait(timeout=DEADLINE)
            eventually(lambda: box.stats().total == 0)


def test_a_result_that_cannot_be_stored_is_a_failure(tmp_path):
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box, dead = backend.mailbox("jobs"), backend.mailbox("dead")
        reply = box.send_expecting_reply("tea")
        dlq = DLQPolicy(dead, max_delivery_count=1)
        worker = Worker(box, lambda body: object(), dlq=dlq)
        unencodable = pytest.raises(ReplyFailedError, match=SerializationError.__name__)
        with in_background(worker), unencodable:
            reply.wait(timeout=DEADLINE)


# --- replays ----------------------------------------------------------------------------------


def dead_lettered(box, dead, **options):
    reply = box.send_expecting_reply("tea", **options)
    drained(Worker(box, boom, dlq=DLQPolicy(dead, max_delivery_count=1)))
    assert dead.stats().total == 1
    return reply


def test_a_replay_answers_the_caller(box, dead):
    reply = dead_lettered(box, dead)
    with pytest.raises(ReplyFailedError):
        reply.wait(timeout=DEADLINE)
    assert replay_dead_letters(dead, box) == 1
    assert reply.status().state == JobState.QUEUED
    with pytest.raises(ReplyTimeoutError):
        reply.wait(timeout=0.05)
    drained(Worker(box, str.upper))
    assert reply.wait(timeout=DEADLINE) == "TEA"
    assert box.stats().total == 0


def test_a_replay_that_fails_again_tells_the_caller_again(box, dead):
    reply = dead_lettered(box, dead)
    replay_dead_letters(dead, box)
    drained(Worker(box, boom, dlq=DLQPolicy(dead, max_delivery_count=1)))
    with pytest.raises(ReplyFailedError):
        reply.wait(timeout=DEADLINE)
    (letter,) = dead.peek()
    assert letter.body.reply_id == reply.id
    first = letter.body.origin_id
    assert first is not None
    replay_dead_letters(dead, box)
    drained(Worker(box, boom, dlq=DLQPolicy(dead, max_delivery_count=1)))
    assert dead.peek()[0].body.origin_id == first


def test_a_replay_is_run_although_its_caller_has_cancelled(box, dead):
    reply = box.send_expecting_reply("tea")
    (message,) = box.receive()
    message.nack()
    worker = Worker(box, boom, dlq=DLQPolicy(dead, max_delivery_count=1))
    drained(worker)
    # The failure is told, so that cancelling comes too late; then the entry is as if it had not.
    assert reply.cancel() is False
    box.reply(reply.id)._replies.run("delete", lambda: box._reply_table.delete(reply.id))
    assert replay_dead_letters(dead, box) == 1
    ran = []
    drained(Worker(box, ran.append))
    assert ran == ["tea"]


def test_a_replay_whose_reply_expires_is_run(box, dead):
    reply = dead_lettered(box, dead, reply_timeout=0.5)
    replay_dead_letters(dead, box)
    eventually(lambda: reply.status().state == JobState.EXPIRED)
    ran = []
    drained(Worker(box, ran.append))
    assert ran == ["tea"]
    assert box.stats().total == 0


def killed_in_a_replay(box, dead, monkeypatch):
    """Replay, but die before the letter is removed: so that the next replay finds it again."""
    send = Replay._send

    def killed(self, *letter):
        send(self, *letter)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Replay, "_send", killed)
        replay_dead_letters(dead, box)


def test_a_replay_that_is_repeated_after_a_kill_leaves_a_failure_alone(
    box, dead, backend, monkeypatch
):
    reply = dead_lettered(box, dead, keep=600)
    killed_in_a_replay(box, dead, monkeypatch)
    drained(Worker(box, boom, dlq=DLQPolicy(backend.mailbox("answers"), max_delivery_count=1)))
    assert reply.status().state == JobState.FAILED
    assert replay_dead_letters(dead, box) == 1
    assert (box.stats().total, reply.status().state) == (0, JobState.FAILED)


def test_a_replay_that_is_not_sent_leaves_the_failure_alone(box, dead, backend):
    reply = dead_lettered(box, dead, keep=600)
    if box._reply_maker is None:
        pytest.skip("declared: this queue and its replies are changed in two steps")
    full = backend.mailbox("jobs", max_size=1)
    full.send("another")
    with pytest.raises(MailboxFullError):
        replay_dead_letters(dead, full)
    assert (dead.stats().total, reply.status().state) == (1, JobState.FAILED)


def test_a_replay_that_is_repeated_after_a_kill_leaves_a_running_job_alone(box, dead, monkeypatch):
    reply = dead_lettered(box, dead, keep=600)
    killed_in_a_replay(box, dead, monkeypatch)

    def handle(body, job):
        assert replay_dead_letters(dead, box) == 1
        assert reply.status().state == JobState.RUNNING
        return job.emit("a part that its caller still gets")

    drained(Worker(box, handle))
    assert reply.wait(timeout=DEADLINE) is True


def test_a_replay_that_is_repeated_after_a_kill_leaves_an_expired_reply_alone(
    box, dead, monkeypatch
):
    """Its caller was told that this sending has expired: another answer to it must not come."""
    reply = dead_lettered(box, dead, reply_timeout=0.5, keep=600)
    killed_in_a_replay(box, dead, monkeypatch)
    eventually(lambda: reply.status().state == JobState.EXPIRED)
    assert replay_dead_letters(dead, box) == 1
    drained(Worker(box, str.upper))
    assert (box.stats().total, reply.status().state) == (0, JobState.EXPIRED)


def test_a_replay_opens_no_reply_of_another_message(box, dead):
    victim = box.send_expecting_reply("tea", delay_seconds=200)
    box.send("evil")
    drained(Worker(box, boom, dlq=DLQPolicy(dead, max_delivery_count=1)))
    (seen,) = dead.peek()
    dead.purge()
    dead.send(replace(seen.body, reply_id=victim.id))
    assert replay_dead_letters(dead, box) == 1
    drained(Worker(box, str.upper))
    assert victim.status().state == JobState.QUEUED
    assert victim.status().message_id == victim.message_id


def test_a_letter_that_does_not_know_how_long_its_caller_waits(box, dead):
    """A message whose workers died is given up without a look at its reply."""
    reply = dead_lettered(box, dead, reply_timeout=3600, keep=600)
    (seen,) = dead.peek()
    dead.purge()
    dead.send(replace(seen.body, reply_timeout=None, reply_keep=None))
    replay_dead_letters(dead, box)
    row = box._replies().run("get", lambda: box._reply_table.get(reply.id))
    assert (row.ttl, row.keep) == (3600, 600)


# --- cancelling -------------------------------------------------------------------------------


def test_a_running_job_is_cancelled_at_once_in_the_same_process(box, made):
    begun, ended, told = threading.Event(), threading.Event(), []

    def handle(body, job):
        begun.set()
        return _until_cancelled(job, told, ended, is_async=made.is_async)

    events = InProcessDispatcher()
    cancelled = []
    events.subscribe(JobCancelled, lambda event: cancelled.append(event.message_id))
    reply = box.send_expecting_reply("tea")
    with in_background(Worker(box, made(handle), config=WorkerConfig(dispatcher=events))):
        assert begun.wait(DEADLINE)
        started = time.monotonic()
        assert reply.cancel() is True
        assert ended.wait(DEADLINE)
        # At once, or ten times what a look takes on a busy machine: in any case before a look.
        assert time.monotonic() - started < 40
        eventually(lambda: box.stats().total == 0)
    assert told == ["caller"]
    assert cancelled == [reply.message_id]
    with pytest.raises(ReplyCancelledError):
        reply.wait()


def _until_cancelled(job, told, ended, *, is_async):
    async def wait():
        try:
            await asyncio.sleep(DEADLINE)
        except asyncio.CancelledError:
            told.append(job.cancelled)
            raise
        finally:
            ended.set()

    if is_async:
        return wait()
    eventually(lambda: job.cancelled, within=DEADLINE)
    told.append(job.cancelled)
    ended.set()
    with pytest.raises(JobCancelledError):
        job.raise_if_cancelled()
    return "too late"


def test_a_running_job_is_cancelled_from_another_process(box, backend, made, monkeypatch):
    """Nobody rings in this process: the thread that keeps the leases looks by itself."""
    monkeypatch.setattr(
        "weakincentives.runtime.mailbox.replies.reply.announce_cancel", lambda store: None
    )
    monkeypatch.setattr("weakincentives.runtime.leases.scheduler.LOOK_FOR_CANCELS_SECONDS", 0.2)
    begun, ended, told = threading.Event(), threading.Event(), []

    def handle(body, job):
        begun.set()
        return _until_cancelled(job, told, ended, is_async=made.is_async)

    reply = box.send_expecting_reply("tea")
    with in_background(Worker(box, made(handle))):
        assert begun.wait(DEADLINE)
        assert backend.reply(reply.id).cancel() is True
        assert ended.wait(DEADLINE)
    assert told == ["caller"]
    assert box.stats().total == 0


def test_a_running_job_is_cancelled_though_its_lease_is_not_extended(box, made):
    begun, ended, told = threading.Event(), threading.Event(), []

    def handle(body, job):
        begun.set()
        return _until_cancelled(job, told, ended, is_async=made.is_async)

    reply = box.send_expecting_reply("tea")
    config = WorkerConfig(lease_extender=LeaseExtenderConfig(enabled=False))
    with in_background(Worker(box, made(handle), config=config)):
        assert begun.wait(DEADLINE)
        assert reply.cancel() is True
        assert ended.wait(DEADLINE)
    assert told == ["caller"]


def test_a_message_without_a_reply_is_cancelled_by_its_id(box, dead, made):
    begun, ended, told = threading.Event(), threading.Event(), []

    def handle(body, job):
        begun.set()
        return _until_cancelled(job, told, ended, is_async=made.is_async)

    id = box.send("tea")
    dlq = DLQPolicy(dead, max_delivery_count=1)
    with in_background(Worker(box, made(handle), dlq=dlq)):
        assert begun.wait(DEADLINE)
        assert box.cancel(id) is True
        assert ended.wait(DEADLINE)
        eventually(lambda: box.stats().total == 0)
    assert told == ["caller"]
    assert dead.stats().total == 0


def test_a_queued_job_that_is_cancelled_never_runs(box, made):
    ran = []
    replies = [box.send_expecting_reply(n) for n in range(3)]
    assert replies[1].cancel() is True
    drained(Worker(box, made(lambda body, job: ran.append(body))), 3)
    assert ran == [0, 2]
    with pytest.raises(ReplyCancelledError):
        replies[1].wait(timeout=DEADLINE)


@pytest.mark.parametrize("is_told", [True, False], ids=["told", "not told yet"])
def test_a_cancelled_job_that_fails_is_not_dead_lettered(box, dead, made, monkeypatch, is_told):
    monkeypatch.setattr(
        "weakincentives.runtime.mailbox.replies.reply.announce_cancel", lambda store: None
    )
    reply = box.send_expecting_reply("tea")

    def handle(body, job):
        assert box.reply(reply.id).cancel()
        if is_told:
            job.lease.cancelled = True
        raise ValueError(body)

    drained(Worker(box, made(handle), dlq=DLQPolicy(dead, max_delivery_count=1)))
    assert (box.stats().total, dead.stats().total) == (0, 0)
    assert reply.status().state == JobState.CANCELLED


def test_a_cancelled_job_that_goes_on_until_its_time_limit_is_not_dead_lettered(
    box, dead, made, monkeypatch
):
    monkeypatch.setattr("weakincentives.runtime.worker.time_limits.FINALLY_SECONDS", 0.05)
    settled = []

    async def awaited():
        while not settled:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    def handle(body, job):
        assert reply.cancel()
        job.lease.cancelled = True
        if made.is_async:
            return awaited()
        eventually(lambda: settled, within=DEADLINE)
        return None

    reply = box.send_expecting_reply("tea")
    config = WorkerConfig(time_limit=0.1)
    dlq = DLQPolicy(dead, max_delivery_count=1)
    with in_background(Worker(box, made(handle), dlq=dlq, config=config)):
        try:
            eventually(lambda: box.stats().total == 0, within=DEADLINE)
        finally:
            settled.append(True)
    assert dead.stats().total == 0


def test_a_job_is_cancelled_that_was_cancelled_just_before_it_began(box, made, monkeypatch):
    """The thread that extends leases tells of it when the job has no task yet."""
    ask = OutcomeExecutor.ask_caller

    async def cancelled_meanwhile(self, attempt):
        outcome = await ask(self, attempt)
        assert reply.cancel()
        attempt.lease.cancel()
        return outcome

    monkeypatch.setattr(OutcomeExecutor, "ask_caller", cancelled_meanwhile)
    ran = []

    def handle(body, job):
        job.raise_if_cancelled()
        ran.append(body)

    async def awaited(body):
        await asyncio.sleep(0)
        ran.append(body)

    reply = box.send_expecting_reply("tea")
    handler = made(lambda body, job: awaited(body) if made.is_async else handle(body, job))
    drained(Worker(box, handler))
    assert ran == []
    assert box.stats().total == 0


def test_a_signal_handler_cancels_while_its_thread_wakes_the_extender(box):
    """It would wait for a lock that its own thread holds."""
    scheduler = LeaseScheduler()
    box.send("tea")
    (message,) = box.receive()
    lease = LeaseExtender(scheduler=scheduler).hold(message)

    def interrupted():
        with scheduler._lock:
            scheduler.look_soon()

    thread = threading.Thread(target=interrupted, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    lease.release()


def test_an_answer_wins_over_a_later_cancel(box, made):
    reply = box.send_expecting_reply("tea")
    drained(Worker(box, made(lambda body, job: body.upper())))
    assert reply.cancel() is False
    assert reply.wait(timeout=DEADLINE) == "TEA"


# --- parts ------------------------------------------------------------------------------------


def emitting(made, values, results):
    """Return a handler that emits values, and notes what each call returned."""

    def plain(body, job):
        for value in values:
            results.append(job.emit(value))
        return "done"

    async def awaited(job):
        for value in values:
            results.append(await job.emit(value))
        return "done"

    return made(lambda body, job: awaited(job) if made.is_async else plain(body, job))


def test_parts_reach_the_caller_in_order_and_before_the_reply(box, made):
    results = []
    reply = box.send_expecting_reply("tea", keep=600)
    with in_background(Worker(box, emitting(made, range(250), results))):
        parts = list(reply.parts(timeout=DEADLINE))
        assert reply.wait(timeout=DEADLINE) == "done"
    assert [part.value for part in parts] == list(range(250))
    assert [part.index for part in parts] == list(range(250))
    assert set(results) == {True}
    assert reply.status().last_part == 249


def test_without_a_caller_nothing_is_emitted(box, made):
    results = []
    box.send("tea")
    drained(Worker(box, emitting(made, [1], results)))
    assert results == [False]


def test_a_part_that_cannot_be_sent_is_an_error_of_the_handler(tmp_path):
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        box = backend.mailbox("jobs")
        for value in (object(), "x" * 70_000):
            reply = box.send_expecting_reply("tea")
            drained(Worker(box, lambda body, job, value=value: job.emit(value)))
            with pytest.raises(ReplyFailedError):
                reply.wait(timeout=DEADLINE)


def test_after_a_cancel_parts_are_refused(box, made):
    results = []
    reply = box.send_expecting_reply("tea")
    begun, go_on = threading.Event(), threading.Event()

    def handle(body, job):
        begun.set()
        go_on.wait(DEADLINE)
        eventually(lambda: job.cancelled, within=DEADLINE)
        results.append(job.emit("late"))

    with in_background(Worker(box, lambda body, job: handle(body, job))):
        assert begun.wait(DEADLINE)
        assert reply.cancel()
        go_on.set()
        eventually(lambda: results)
    assert results == [False]


def test_parts_of_a_job_that_replies_by_itself_come_first(box, made):
    def plain(job):
        job.emit("part")
        job.reply("answer")

    async def awaited(job):
        await job.emit("part")
        await job.reply("answer")

    handler = made(lambda body, job: awaited(job) if made.is_async else plain(job))
    reply = box.send_expecting_reply("tea", keep=600)
    with in_background(Worker(box, handler)):
        assert reply.wait(timeout=DEADLINE) == "answer"
    assert [part.value for part in reply.parts(timeout=DEADLINE)] == ["part"]
