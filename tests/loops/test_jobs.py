"""The job in a handler's hands, with threads and in an event loop."""

import asyncio
import random
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from itertools import pairwise

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives.adapters import RateLimitError
from weakincentives.contrib.mailbox.testing import FakeClock
from weakincentives.runtime import (
    AsyncJob,
    Backoff,
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    InMemoryReplyStore,
    InProcessDispatcher,
    InvalidParameterError,
    Job,
    JobCancelledError,
    LeaseExtenderConfig,
    Limits,
    NoCurrentJobError,
    ReplyAlreadySentError,
    RetryAfter,
    TimeLimitExceededError,
    Worker,
    WorkerConfig,
    current_async_job,
    current_job,
    current_lease,
)
from weakincentives.runtime.events import JobAbandoned, JobFailed, JobPutOff
from weakincentives.runtime.worker import event_loop, time_limits

SHORT = 0.2
AT_ONCE = Backoff(base=0, cap=0)
FOREVER = 60.0


def serve(worker, times=1):
    worker.run(max_iterations=times, wait_time_seconds=0)


# --- what it knows --------------------------------------------------------------------------


def test_a_job_knows_its_message(backend, made):
    box, seen = backend.mailbox("jobs"), []

    def handle(body, job):
        current = current_async_job() if made.is_async else current_job()
        seen.append((body, job, job.cancelled, job.deadline, job.lease is current_lease()))
        assert current is job
        if job.delivery_count == 1:
            raise ValueError("once more")

    before = datetime.now(UTC)
    id = box.send("tea", attributes={"tenant": "a"})
    worker = Worker(box, made(handle), config=WorkerConfig(backoff=AT_ONCE))
    with in_background(worker):
        eventually(lambda: len(seen) == 2)
    for count, (body, job, cancelled, deadline, has_lease) in enumerate(seen, 1):
        assert type(job) is (AsyncJob if made.is_async else Job)
        assert (body, job.id, cancelled, deadline, has_lease) == ("tea", id, None, None, True)
        assert (job.delivery_count, job.attempts) == (count, count)
        assert job.mailbox is box
        assert dict(job.attributes) == {"tenant": "a"}
        assert abs((job.enqueued_at - before).total_seconds()) < 60
        assert job.resources is None
        assert repr(job) == f"<{type(job).__name__} {id}, delivery {count}>"


@pytest.mark.parametrize(
    ("reply_timeout", "time_limit", "expected"),
    [(100, None, 100), (100, 200, 100), (200, 100, 100), (None, 100, 100)],
)
def test_the_deadline_is_the_earlier_of_two(backend, made, reply_timeout, time_limit, expected):
    box, left = backend.mailbox("jobs"), []
    if reply_timeout is None:
        box.send("tea")
    else:
        box.send_expecting_reply("tea", reply_timeout=reply_timeout)
    config = WorkerConfig(time_limit=time_limit)
    serve(Worker(box, made(lambda _, job: left.append(job.deadline.remaining())), config=config))
    assert expected - 30 < left[0] <= expected + 1


def test_a_job_is_found_below_the_handler_and_nowhere_else(box):
    found = []

    async def handle(body):
        found.append(current_async_job())
        found.append(await asyncio.to_thread(current_async_job))
        with pytest.raises(NoCurrentJobError, match="call current_async_job"):
            current_job()

    def plain(body):
        found.append(current_job())
        with pytest.raises(NoCurrentJobError, match="call current_job"):
            current_async_job()

    box.send_batch([1, 2])
    serve(Worker(box, handle))
    serve(Worker(box, plain))
    assert found[0] is found[1]
    assert isinstance(found[2], Job)
    for outside in (current_job, current_async_job):
        with pytest.raises(NoCurrentJobError, match="handler"):
            outside()
        assert issubclass(NoCurrentJobError, RuntimeError)


def test_the_policy_and_the_error_reply_see_the_job_too(box, made):
    seen = []

    def fail(body, job):
        raise ValueError

    def tell(failure):
        seen.append(
            (current_async_job if made.is_async else current_job)().id == failure.message_id
        )
        return "no"

    reply = box.send_expecting_reply("tea")
    serve(Worker(box, made(fail), error_reply=tell))
    assert reply.wait(timeout=30) == "no"
    assert seen == [True]


@pytest.mark.parametrize("named", [False, True], ids=["second", "by name"])
def test_who_handles_dead_letters_gets_a_job_too(box, letters, made, named):
    box.send("tea")
    failing = Worker(box, lambda body: 1 / 0, dlq=DLQPolicy(letters, max_delivery_count=1))
    serve(failing)
    seen = []
    handler = made(lambda letter, job: seen.append((letter.body, job.delivery_count)))
    by_name = handler
    if named and made.is_async:

        async def by_name(letter, *, job):
            await handler(letter, job)

    elif named:

        def by_name(letter, *, job):
            handler(letter, job)

    serve(DLQConsumer(mailbox=letters, handler=by_name))
    assert seen == [("tea", 1)]


def test_a_job_finds_the_resources_of_its_run(box, made):
    seen = []
    box.send_batch([1, 2])
    worker = Worker(
        box,
        made(lambda _, job: seen.append(job.resources)),
        resources=lambda: nullcontext("client"),
    )
    serve(worker, 2)
    assert seen == ["client", "client"]


# --- reply ----------------------------------------------------------------------------------


@contextmanager
def running(worker):
    with in_background(worker, wait_time_seconds=1):
        yield


def test_a_caller_is_answered_before_the_handler_ends(backend, made):
    box, go, second = backend.mailbox("jobs"), threading.Event(), []

    async def handle_async(body, job):
        assert await job.reply("early") is True
        with pytest.raises(ReplyAlreadySentError, match="has replied already"):
            await job.reply("again")
        second.append(job.cancelled)
        await asyncio.to_thread(go.wait, 30)
        return "late"

    def handle(body, job):
        assert job.reply("early") is True
        with pytest.raises(ReplyAlreadySentError, match="has replied already"):
            job.reply("again")
        second.append(job.cancelled)
        assert go.wait(30)
        return "late"

    reply = box.send_expecting_reply("tea")
    worker = Worker(box, handle_async if made.is_async else handle)
    with running(worker):
        assert reply.wait(timeout=30) == "early"
        go.set()
    assert second == [None]
    assert box.stats().total == 0
    assert worker.lease_extender.counters.held == 0


def test_a_job_that_fails_after_its_reply_is_not_tried_again(backend, made):
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    events, failed, abandoned = InProcessDispatcher(), [], []
    events.subscribe(JobFailed, failed.append)
    events.subscribe(JobAbandoned, abandoned.append)

    async def handle_async(body, job):
        await job.reply("early")
        raise ValueError("late")

    def handle(body, job):
        job.reply("early")
        raise ValueError("late")

    reply = box.send_expecting_reply("tea")
    serve(
        Worker(
            box,
            handle_async if made.is_async else handle,
            dlq=DLQPolicy(letters, max_delivery_count=1),
            error_reply=str,
            config=WorkerConfig(dispatcher=events, backoff=AT_ONCE),
        ),
    )
    assert reply.wait(timeout=30) == "early"
    assert (box.stats().total, letters.stats().total) == (0, 0)
    assert [event.outcome for event in failed] == ["answered"]
    assert abandoned == []


def test_a_job_that_has_replied_to_its_caller_needs_no_lease(made, caplog):
    clock = FakeClock()
    box, told = InMemoryMailbox("jobs", clock=clock), []

    async def handle_async(body, job):
        await job.reply("early")
        clock.advance(61)
        told.append(job.cancelled)

    def handle(body, job):
        job.reply("early")
        clock.advance(61)
        told.append(job.cancelled)

    reply = box.send_expecting_reply("tea")
    config = WorkerConfig(lease_extender=LeaseExtenderConfig(enabled=False))
    serve(Worker(box, handle_async if made.is_async else handle, config=config))
    assert reply.wait(timeout=30) == "early"
    assert told == [None]
    assert "lease was lost" not in caplog.text


@pytest.mark.parametrize("where", ["reply_to", "responses"])
def test_a_reply_to_a_mailbox_goes_out_once_however_often_the_job_runs(backend, made, where):
    box, answers = backend.mailbox("jobs"), backend.mailbox("answers")
    runs = []

    async def handle_async(body, job):
        assert await job.reply("early") is True
        runs.append(job.delivery_count)
        if len(runs) < 3:
            raise ValueError("late")
        return "late"

    def handle(body, job):
        assert job.reply("early") is True
        runs.append(job.delivery_count)
        if len(runs) < 3:
            raise ValueError("late")
        return "late"

    box.send("tea", reply_to=answers if where == "reply_to" else None)
    worker = Worker(
        box,
        handle_async if made.is_async else handle,
        responses=answers if where == "responses" else None,
        error_reply=lambda failure: "failed",
        config=WorkerConfig(backoff=AT_ONCE),
    )
    serve(worker, 3)
    assert runs == [1, 2, 3]
    assert [message.body for message in answers.receive(max_messages=10)] == ["early"]
    assert box.stats().total == 0


def test_a_message_that_asks_for_no_answer_gets_none(backend, made):
    box, sent = backend.mailbox("jobs"), []

    async def handle_async(body, job):
        sent.append(await job.reply("early"))

    def handle(body, job):
        sent.append(job.reply("early"))

    box.send("tea")
    serve(Worker(box, handle_async if made.is_async else handle))
    assert sent == [False]
    assert box.stats().total == 0


# --- RetryAfter -----------------------------------------------------------------------------


def test_a_message_that_is_put_off_twenty_times_comes_when_it_was_said(made):
    clock = FakeClock()
    box, letters = InMemoryMailbox("jobs", clock=clock), InMemoryMailbox("dead")
    at = []

    def handle(body, job):
        at.append((clock.time(), job.delivery_count, job.attempts))
        if len(at) <= 20:
            raise RetryAfter(30)

    box.send("tea")
    worker = Worker(box, made(handle), dlq=DLQPolicy(letters))
    began = clock.time()
    for _ in range(20):
        serve(worker)
        clock.advance(29.5)
        serve(worker)  # too early
        clock.advance(0.5)
    serve(worker)
    assert at == [(began + 30 * n, n + 1, 1) for n in range(21)]
    assert (box.stats().total, letters.stats().total) == (0, 0)


def test_a_message_that_is_put_off_is_no_dead_letter(backend, made):
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    events, put_off, at = InProcessDispatcher(), [], []
    events.subscribe(JobPutOff, put_off.append)

    def handle(body, job):
        at.append(time.monotonic())
        if len(at) <= 20:
            raise RetryAfter(0.05)
        return "done"

    reply = box.send_expecting_reply("tea")
    config = WorkerConfig(dispatcher=events)
    with running(Worker(box, made(handle), dlq=DLQPolicy(letters), config=config)):
        assert reply.wait(timeout=FOREVER) == "done"
    assert min(after - before for before, after in pairwise(at)) > 0.045
    assert [event.seconds for event in put_off] == [0.05] * 20
    assert (box.stats().total, letters.stats().total) == (0, 0)


def test_failures_are_counted_apart_from_delays(backend, made):
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    runs = []

    def handle(body, job):
        runs.append((job.delivery_count, job.attempts))
        raise RetryAfter(0) if job.delivery_count % 3 else ValueError("no")

    box.send("tea")
    policy = DLQPolicy(letters, max_delivery_count=3)
    with running(Worker(box, made(handle), dlq=policy, config=WorkerConfig(backoff=AT_ONCE))):
        eventually(lambda: letters.stats().total)
    assert runs == [(n, 1 + (n - 1) // 3) for n in range(1, 10)]


def test_a_message_is_put_off_for_no_longer_than_its_caller_waits(backend, made):
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")

    def handle(body, job):
        raise RetryAfter(100) from ValueError("busy")

    box.send_expecting_reply("tea", reply_timeout=50)
    serve(Worker(box, made(handle), dlq=DLQPolicy(letters)))
    (letter,) = [message.body for message in letters.receive()]
    assert letter.last_error_type.endswith("DeadlineExceededError")
    assert letter.delivery_count == 1


def test_a_caller_waits_longer_for_what_is_put_off(made):
    clock = FakeClock()
    replies = InMemoryReplyStore(clock=clock)
    box = InMemoryMailbox("jobs", clock=clock, reply_store=replies)
    deadlines = []

    def handle(body, job):
        deadlines.append(job.deadline.remaining())
        if job.delivery_count <= 3:
            raise RetryAfter(30)
        return body.upper()

    reply = box.send_expecting_reply("tea", reply_timeout=50)
    worker = Worker(box, made(handle))
    for _ in range(4):
        serve(worker)
        assert len(deadlines) < 4 or reply.wait(timeout=0) == "TEA"
        clock.advance(30)
    assert deadlines == [pytest.approx(50, abs=5)] * 4


def test_a_message_is_put_off_until_it_is_too_old(made):
    clock = FakeClock()
    box, letters = InMemoryMailbox("jobs", clock=clock), InMemoryMailbox("dead")

    def handle(body, job):
        raise RetryAfter(3600)

    box.send("tea")
    policy = DLQPolicy(letters, max_delivery_count=1)
    worker = Worker(box, made(handle), dlq=policy)
    for hours in range(26):
        assert letters.stats().total == 0, hours
        serve(worker)
        clock.advance(3600)
    (letter,) = [message.body for message in letters.receive()]
    assert letter.last_error_type.endswith("RetryAfter")
    assert letter.delivery_count == 26


def test_a_message_is_put_off_until_it_was_delivered_too_often(box, letters, made):
    def handle(body, job):
        raise RetryAfter(0)

    box.send("tea")
    policy = DLQPolicy(letters, max_delivery_count=2, absolute_max_delivery_count=7)
    serve(Worker(box, made(handle), dlq=policy), 10)
    (letter,) = [message.body for message in letters.receive()]
    assert letter.delivery_count == 7
    assert letter.last_error_type.endswith("RetryAfter")


def test_a_delay_that_the_mailbox_cannot_do_is_refused_when_it_is_made(box, made):
    box.limits = Limits(max_visibility=43_200)
    refused = []

    def handle(body, job):
        with pytest.raises(InvalidParameterError, match=r"43200 \(jobs cannot delay") as error:
            RetryAfter(43_201)
        refused.append(error)

    box.send("tea")
    serve(Worker(box, made(handle)))
    assert len(refused) == 1
    assert RetryAfter(43_201).seconds == 43_201


@pytest.mark.parametrize("seconds", [-1, "30", None, True, float("nan"), float("inf")])
def test_a_delay_is_a_number_of_seconds(seconds):
    with pytest.raises(InvalidParameterError, match="number of seconds"):
        RetryAfter(seconds)


@pytest.mark.parametrize(
    ("error", "put_off"),
    [
        (RateLimitError("busy", retry_after=0.01), True),
        (RateLimitError("busy"), False),
        (ExceptionGroup("both", [RetryAfter(0.01), RateLimitError(retry_after=0)]), True),
        (ExceptionGroup("both", [RetryAfter(0.01), ValueError("no")]), False),
    ],
)
def test_a_provider_that_says_when_is_asked_again_then(box, letters, made, error, put_off):
    def handle(body, job):
        if job.delivery_count == 1:
            raise error

    box.send("tea")
    with running(Worker(box, made(handle), dlq=DLQPolicy(letters, max_delivery_count=1))):
        eventually(lambda: box.stats().total == 0)
    assert letters.stats().total == (0 if put_off else 1)


# --- time limits ----------------------------------------------------------------------------


def limited(**more):
    return WorkerConfig(time_limit=SHORT, backoff=AT_ONCE, **more)


def dead(letters):
    eventually(lambda: letters.stats().total)
    return [message.body for message in letters.receive(max_messages=10)]


def is_time_limit(letter):
    return letter.last_error_type.rpartition(".")[2] == TimeLimitExceededError.__name__


@pytest.mark.parametrize("ending", ["is cancelled", "returns", "raises", "asks for more"])
def test_an_async_job_past_its_limit_is_cancelled_and_has_failed(backend, ending):
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    story = []

    async def handle(body, job):
        try:
            await asyncio.sleep(FOREVER)
        except asyncio.CancelledError:
            story.append(job.cancelled)
            with pytest.raises(JobCancelledError, match="time_limit"):
                await job.reply("late")
            if ending == "returns":
                return "late"
            if ending == "raises":
                raise ValueError("late") from None
            if ending == "asks for more":
                raise RetryAfter(1) from None
            raise
        finally:
            story.append("finally")

    box.send_expecting_reply("tea")
    policy = DLQPolicy(letters, max_delivery_count=1)
    with running(Worker(box, handle, dlq=policy, config=limited())):
        (letter,) = dead(letters)
    assert is_time_limit(letter)
    assert story == ["time_limit", "finally"]
    assert box.stats().total == 0


def test_an_async_job_that_goes_on_is_left_alone(backend, monkeypatch):
    """Its message is settled, its place stays taken, and what it returns is dropped."""
    monkeypatch.setattr(time_limits, "FINALLY_SECONDS", SHORT)
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    go, story, refused = threading.Event(), [], []

    async def handle(body, job):
        story.append(body)
        while body == "stubborn" and not go.is_set():
            try:
                await asyncio.to_thread(go.wait, 30)
            except asyncio.CancelledError:
                story.append("told")
        if body == "stubborn":
            with pytest.raises(JobCancelledError) as error:
                await job.reply("late")
            refused.append(error)
        return "late"

    box.send("stubborn")
    policy = DLQPolicy(letters, max_delivery_count=1)
    worker = Worker(box, handle, dlq=policy, config=limited())
    with running(worker):
        (letter,) = dead(letters)
        box.send("next")
        assert story == ["stubborn", "told"]
        eventually(lambda: box.stats().total == 1)
        go.set()
        eventually(lambda: box.stats().total == 0)
    assert is_time_limit(letter)
    assert story == ["stubborn", "told", "next"]
    assert len(refused) == 1
    assert worker.lease_extender.counters.held == 0


def test_a_shutdown_does_not_give_back_what_is_being_settled_at_its_limit(box, monkeypatch):
    monkeypatch.setattr(time_limits, "FINALLY_SECONDS", SHORT)
    monkeypatch.setattr(event_loop, "FINALLY_SECONDS", SHORT)
    letters, entered, go = InMemoryMailbox("dead"), threading.Event(), threading.Event()

    async def slow(body, **options):
        entered.set()
        await asyncio.to_thread(go.wait, 30)
        return letters.send(body, **options)

    monkeypatch.setattr(letters, "send_async", slow)

    async def handle(body, job):
        while not go.is_set():
            try:
                await asyncio.to_thread(go.wait, 30)
            except asyncio.CancelledError:
                pass

    box.send("stubborn")
    worker = Worker(box, handle, dlq=DLQPolicy(letters, max_delivery_count=1), config=limited())
    with running(worker):
        assert entered.wait(30)
        worker.shutdown(timeout=0.05)
        assert box.stats().pending == 0
        go.set()


@pytest.mark.parametrize("ending", ["returns", "raises", "stops"])
def test_a_plain_job_past_its_limit_has_failed_though_it_runs(backend, ending):
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    go, story, refused = threading.Event(), [], []

    def handle(body, job):
        story.append(body)
        if body != "slow":
            return None
        eventually(lambda: job.cancelled)
        story.append(job.cancelled)
        assert go.wait(30)
        with pytest.raises(JobCancelledError) as error:
            job.reply("late")
        refused.append(error)
        if ending == "raises":
            raise ValueError("late")
        if ending == "stops":
            job.raise_if_cancelled()
        return "late"

    reply = box.send_expecting_reply("slow")
    policy = DLQPolicy(letters, max_delivery_count=1)
    worker = Worker(
        box, handle, dlq=policy, config=limited(), error_reply=lambda failure: "too slow"
    )
    with running(worker):
        (letter,) = dead(letters)
        assert reply.wait(timeout=30) == "too slow"
        eventually(lambda: box.stats().total == 0)
        box.send("next")
        eventually(lambda: story == ["slow", "time_limit"])
        go.set()
        eventually(lambda: story[-1] == "next")
    assert is_time_limit(letter)
    assert len(refused) == 1
    assert box.stats().total == 0
    assert worker.lease_extender.counters.held == 0


def test_a_job_that_ends_in_time_is_not_touched(backend, made):
    box, letters = backend.mailbox("jobs"), backend.mailbox("dead")
    done = []
    box.send_batch(list(range(30)))
    policy = DLQPolicy(letters, max_delivery_count=1)
    config = WorkerConfig(time_limit=30, concurrency=5)
    with running(Worker(box, made(lambda body, _: done.append(body)), dlq=policy, config=config)):
        eventually(lambda: box.stats().total == 0)
    assert sorted(done) == list(range(30))
    assert letters.stats().total == 0


@pytest.mark.parametrize("replies_early", [False, True], ids=["returns", "replies"])
def test_each_message_has_one_end_however_close_to_the_limit(backend, made, replies_early):
    """Either its answer or its dead letter: what ends at its limit is settled once."""
    box, letters, answers = (backend.mailbox(name) for name in ("jobs", "dead", "answers"))
    count, chance = 60, random.Random(20)
    box.send_batch([chance.uniform(0.8, 1.2) * SHORT for _ in range(count)])

    async def handle_async(seconds, job):
        await asyncio.sleep(seconds)
        if replies_early:
            await job.reply(job.id)
        return job.id

    def handle(seconds, job):
        time.sleep(seconds)
        if replies_early:
            job.reply(job.id)
        return job.id

    worker = Worker(
        box,
        handle_async if made.is_async else handle,
        responses=answers,
        dlq=DLQPolicy(letters, max_delivery_count=1),
        config=limited(concurrency=20),
    )
    with running(worker):
        eventually(lambda: box.stats().total == 0)
    answered = [message.body for message in answers.receive(max_messages=100)]
    failed = [message.body for message in letters.receive(max_messages=100)]
    assert all(map(is_time_limit, failed))
    ends = [*answered, *(letter.message_id for letter in failed)]
    if not replies_early:
        assert len(ends) == count
    assert len(set(answered)) == len(answered)
    assert len({letter.message_id for letter in failed}) == len(failed)
    assert len(set(ends)) == count
    assert worker.lease_extender.counters.held == 0


def test_a_limit_is_retried_like_any_failure(backend, made):
    box, runs = backend.mailbox("jobs"), []

    def handle(body, job):
        runs.append(job.attempts)
        if len(runs) > 2:
            return "done"
        if made.is_async:
            return asyncio.sleep(FOREVER)
        return eventually(lambda: job.cancelled)

    reply = box.send_expecting_reply("tea")
    dlq = DLQPolicy(backend.mailbox("dead"))
    with running(Worker(box, made(handle), config=limited(), dlq=dlq)):
        assert reply.wait(timeout=FOREVER) == "done"
    assert runs == [1, 2, 3]


def test_one_thread_watches_all_time_limits(box):
    concurrency, all_in = 20, threading.Barrier(21)
    box.send_batch(list(range(concurrency)))
    worker = Worker(
        box, lambda _: all_in.wait(30), config=WorkerConfig(concurrency=concurrency, time_limit=60)
    )
    before = threading.active_count()
    with running(worker):
        eventually(lambda: all_in.n_waiting == concurrency)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("time-limit") == 1
        assert threading.active_count() <= before + concurrency + 3
        all_in.wait(30)
    eventually(lambda: "time-limit" not in [thread.name for thread in threading.enumerate()])


@pytest.mark.parametrize("seconds", [0, -1, "1", True, float("nan")])
@pytest.mark.parametrize("name", ["time_limit", "max_put_off"])
def test_limits_are_above_zero(name, seconds):
    with pytest.raises(InvalidParameterError, match=name):
        WorkerConfig(**{name: seconds})


def test_a_worker_that_is_interrupted_gives_back_a_job_with_a_limit(backend):
    box = backend.mailbox("jobs")
    box.send("tea")

    def handle(body, job):
        sys.exit(3)

    worker = Worker(box, handle, config=WorkerConfig(time_limit=FOREVER, backoff=AT_ONCE))
    with pytest.raises(SystemExit):
        worker.run(wait_time_seconds=0)
    (again,) = box.receive()
    assert (again.delivery_count, again.nack_count) == (2, 1)
    assert worker.lease_extender.counters.held == 0


def test_a_job_that_replies_at_its_limit_is_not_cut_off(made, replies, monkeypatch):
    """Nobody would know whether the reply was sent."""
    box, letters = InMemoryMailbox("jobs"), InMemoryMailbox("dead")
    entered, go, put = threading.Event(), threading.Event(), replies.store.put_now

    def slow(messages):
        entered.set()
        assert go.wait(30)
        return put(messages)

    async def slow_async(body, **options):
        entered.set()
        await asyncio.to_thread(go.wait, 30)
        return replies.send(body, **options)

    monkeypatch.setattr(replies.store, "put_now", slow)
    monkeypatch.setattr(replies, "send_async", slow_async)
    sent = []

    async def handle_async(body, job):
        sent.append(await job.reply("early"))
        await asyncio.sleep(FOREVER)

    def handle(body, job):
        sent.append(job.reply("early"))
        eventually(lambda: job.cancelled)

    box.send("tea", reply_to=replies)
    worker = Worker(
        box,
        handle_async if made.is_async else handle,
        dlq=DLQPolicy(letters, max_delivery_count=1),
        config=limited(),
    )
    with running(worker):
        assert entered.wait(30)
        time.sleep(2 * SHORT)  # the limit must pass while the reply is on its way
        assert letters.stats().total == 0
        go.set()
        (letter,) = dead(letters)
    assert sent == [True]
    assert is_time_limit(letter)
    assert [message.body for message in replies.receive()] == ["early"]


# --- cancelled ------------------------------------------------------------------------------


def test_a_cancellation_that_is_not_ours_is_a_failure(box, letters, made):
    def handle(body, job):
        raise asyncio.CancelledError("from a library")

    box.send("tea")
    serve(Worker(box, made(handle), dlq=DLQPolicy(letters, max_delivery_count=1)))
    (letter,) = [message.body for message in letters.receive()]
    assert letter.last_error_type.endswith("CancelledError")


def test_a_plain_job_is_told_of_the_deadline_of_a_shutdown(backend):
    box, entered, go, told = backend.mailbox("jobs"), threading.Event(), threading.Event(), []

    def handle(body, job):
        entered.set()
        told.append(job.cancelled)
        assert go.wait(30)
        told.append(job.cancelled)
        job.raise_if_cancelled()

    box.send("tea")
    worker = Worker(box, handle, config=WorkerConfig(time_limit=FOREVER))
    with running(worker):
        assert entered.wait(30)
        assert worker.shutdown(timeout=0.05) is False
        go.set()
    assert told == [None, "shutdown"]
    (again,) = box.receive()
    assert again.delivery_count == 1
    assert worker.lease_extender.counters.held == 0


def test_an_async_job_is_told_of_the_deadline_of_a_shutdown(backend):
    box, entered, told = backend.mailbox("jobs"), threading.Event(), []

    async def handle(body, job):
        entered.set()
        try:
            await asyncio.sleep(FOREVER)
        finally:
            told.append(job.cancelled)

    box.send("tea")
    worker = Worker(box, handle, config=WorkerConfig(time_limit=FOREVER))
    with running(worker):
        assert entered.wait(30)
        worker.shutdown(timeout=0.05)
        eventually(lambda: not worker.running)
    assert told == ["shutdown"]
    (again,) = box.receive()
    assert again.delivery_count == 1


def test_a_job_is_told_that_its_lease_is_lost(made):
    clock = FakeClock()
    box = InMemoryMailbox("jobs", clock=clock)
    told = []

    def handle(body, job):
        if job.delivery_count > 1:
            return
        told.append(job.cancelled)
        clock.advance(61)
        told.append(job.cancelled)
        kind = asyncio.CancelledError if made.is_async else JobCancelledError
        with pytest.raises(kind, match="lease was lost"):
            job.raise_if_cancelled()

    box.send("tea")
    config = WorkerConfig(lease_extender=LeaseExtenderConfig(enabled=False))
    serve(Worker(box, made(handle), config=config))
    assert told == [None, "lease"]
    (again,) = box.receive()
    assert (again.delivery_count, again.nack_count) == (2, 0)
