"""Test doubles of mailboxes and jobs: a public import path."""

from weakincentives.runtime.mailbox.testing import (
    CollectingMailbox,
    FakeClock,
    FakeMailbox,
    ImmediateReply,
    NullMailbox,
)
from weakincentives.runtime.worker.testing import (
    FakeAsyncJob,
    FakeJob,
    make_async_job,
    make_job,
)

__all__ = [
    "CollectingMailbox",
    "FakeAsyncJob",
    "FakeClock",
    "FakeJob",
    "FakeMailbox",
    "ImmediateReply",
    "NullMailbox",
    "make_async_job",
    "make_job",
]
