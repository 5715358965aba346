"""Jobs for tests of handlers, and what a handler can find out."""

import asyncio
import pickle
from datetime import UTC, datetime

import pytest

from weakincentives.adapters import RateLimitError
from weakincentives.contrib.mailbox.testing import make_async_job, make_job
from weakincentives.runtime import (
    AsyncJob,
    Deadline,
    InMemoryMailbox,
    InvalidParameterError,
    Job,
    JobCancelledError,
    Limits,
    NoCurrentJobError,
    ReplyAlreadySentError,
    RetryAfter,
    current_async_job,
    current_job,
)

REASONS = ["caller", "time_limit", "shutdown", "lease"]


def test_a_job_for_a_test_has_all_that_a_worker_gives_it():
    job = make_job("tea")
    assert isinstance(job, Job)
    assert (job.body, job.delivery_count, job.attempts, dict(job.attributes)) == ("tea", 1, 1, {})
    assert (job.deadline, job.resources, job.cancelled) == (None, None, None)
    assert (datetime.now(UTC) - job.enqueued_at).total_seconds() < 60
    assert job.mailbox.name == "jobs"
    assert len(job.id) > 5
    assert not job.lease.lost
    job.raise_if_cancelled()


@pytest.mark.parametrize("make", [make_job, make_async_job])
def test_a_test_can_say_what_is_known_of_a_job(make):
    box, deadline, at = InMemoryMailbox("orders"), Deadline.after(5), datetime.now(UTC)
    job = make(
        id="1",
        mailbox=box,
        delivery_count=7,
        attempts=2,
        attributes={"a": "b"},
        enqueued_at=at,
        deadline=deadline,
        resources="client",
    )
    assert (job.id, job.mailbox, job.delivery_count, job.attempts) == ("1", box, 7, 2)
    assert (job.attributes, job.enqueued_at, job.deadline) == ({"a": "b"}, at, deadline)
    assert job.resources == "client"
    assert make(delivery_count=3).attempts == 3


def test_a_test_sees_what_was_replied():
    job = make_job()
    assert job.replies == []
    assert job.reply("yes") is True
    assert job.replies == ["yes"]
    with pytest.raises(ReplyAlreadySentError):
        job.reply("no")
    other = make_async_job()
    assert isinstance(other, AsyncJob)
    assert asyncio.run(other.reply("yes")) is True
    assert other.replies == ["yes"]


@pytest.mark.parametrize("reason", REASONS)
def test_a_test_can_cancel_a_job(reason):
    job, other = make_job(), make_async_job(cancelled=reason)
    job.cancel(reason)
    assert job.cancelled == other.cancelled == reason
    with pytest.raises(JobCancelledError, match=f"job {job.id} was cancelled: "):
        job.raise_if_cancelled()
    with pytest.raises(asyncio.CancelledError, match=f"job {other.id} was cancelled: "):
        other.raise_if_cancelled()
    with pytest.raises(JobCancelledError):
        job.reply("late")


def test_a_job_for_a_test_can_be_the_current_one():
    with make_job() as job:
        assert current_job() is job
        with pytest.raises(NoCurrentJobError):
            current_async_job()
    with pytest.raises(NoCurrentJobError):
        current_job()
    with make_async_job() as job:
        assert current_async_job() is job


def test_the_longest_delay_is_that_of_the_mailbox():
    box = InMemoryMailbox("orders")
    box.limits = Limits(max_visibility=100)
    with make_job(mailbox=box):
        assert RetryAfter(100).seconds == 100
        with pytest.raises(InvalidParameterError, match=r"from 0 to 100 \(orders cannot"):
            RetryAfter(100.5)
    assert RetryAfter(100.5).seconds == 100.5


def test_the_errors_can_be_sent_to_another_process():
    assert pickle.loads(pickle.dumps(RetryAfter(30))).seconds == 30
    error = pickle.loads(pickle.dumps(RateLimitError("busy", retry_after=7)))
    assert (str(error), error.retry_after) == ("busy", 7)
    assert RateLimitError().retry_after is None
    assert str(RetryAfter(2.5)) == "to be delivered again after 2.5 seconds"
