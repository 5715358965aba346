"""Tests that a backend's declared limits and capabilities are true."""

from typing import Any

import pytest

from weakincentives.runtime.mailbox.capabilities import Capabilities
from weakincentives.runtime.mailbox.errors import (
    InvalidParameterError,
    MailboxError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.limits import Limits

from .harness import Harness

__all__ = ["DeclaredCapabilities"]


class DeclaredCapabilities(Harness):
    """Differences between backends are declared, and an unsupported call raises an error."""

    def test_limits_and_capabilities_are_declared(self) -> None:
        box = self.mailbox()
        assert isinstance(box.limits, Limits)
        assert isinstance(box.capabilities, Capabilities)
        assert box.limits.max_batch >= 1
        assert box.name in repr(box.raw)
        assert box.closed is False

    def test_whole_seconds_are_declared(self) -> None:
        box = self.mailbox()
        if box.limits.fractions:
            assert box.receive(visibility_timeout=0.5, wait_time_seconds=0.01) == []
        else:
            with pytest.raises(InvalidParameterError, match="whole"):
                box.receive(visibility_timeout=0.5)

    def test_a_peek_works_or_is_refused(self) -> None:
        box = self.mailbox()
        if box.capabilities.peeks:
            assert box.peek() == []
        else:
            with pytest.raises(UnsupportedOperationError):
                box.peek()

    def test_a_delay_works_or_is_refused(self) -> None:
        box = self.mailbox()
        if box.capabilities.delays:
            box.send(1, delay_seconds=60)
            assert box.receive() == []
        else:
            with pytest.raises(MailboxError):
                box.send(1, delay_seconds=60)
            assert box.receive() == []

    def test_an_asyncio_client_refuses_the_blocking_face(self) -> None:
        box = self.mailbox().raw
        if box.store.steps != "awaited":
            pytest.skip("declared: both faces work here")
        calls: dict[str, Any] = {
            "send": lambda: box.send(1),
            "send_batch": lambda: box.send_batch([1]),
            "send_expecting_reply": lambda: box.send_expecting_reply(1),
            "receive": box.receive,
            "purge": box.purge,
            "stats": box.stats,
            "approximate_count": box.approximate_count,
            "peek": box.peek,
        }
        for name, call in calls.items():
            with pytest.raises(UnsupportedOperationError, match=f"{name}_async"):
                call()
