"""Test doubles, under the name that the specification imports them from."""

from weakincentives.runtime.mailbox.testing import (
    CollectingMailbox,
    FakeClock,
    FakeMailbox,
    ImmediateReply,
    NullMailbox,
)

__all__ = ["CollectingMailbox", "FakeClock", "FakeMailbox", "ImmediateReply", "NullMailbox"]
