"""What a receive does when its backend is closed by another thread meanwhile."""

import asyncio
from typing import Any

import pytest

from weakincentives.runtime.mailbox import InMemoryMailbox, MailboxClosedError


def closing(box: Any) -> Any:
    """Return a step during which the backend is closed."""

    def closed_meanwhile(*args: Any, **options: Any) -> Any:
        box.close()
        raise MailboxClosedError("its backend was closed")

    return closed_meanwhile


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> Any:
    box: Any = InMemoryMailbox("jobs")
    for step in ("lease", "lease_now"):
        monkeypatch.setattr(box.store, step, closing(box))
    return box


@pytest.mark.parametrize("wait", [0, 20])
def test_a_receive_whose_backend_is_closed_meanwhile_gets_nothing(box: Any, wait: float) -> None:
    assert box.receive(wait_time_seconds=wait) == []


def test_an_async_one_too(box: Any) -> None:
    assert asyncio.run(box.receive_async(wait_time_seconds=20)) == []


def test_a_wait_whose_backend_is_closed_just_then_too(monkeypatch: pytest.MonkeyPatch) -> None:
    box: Any = InMemoryMailbox("jobs")
    listen = box.store.listen

    def listen_to_one_that_closes(**options: Any) -> Any:
        listener = listen(**options)
        monkeypatch.setattr(listener, "lease", closing(box))
        return listener

    monkeypatch.setattr(box.store, "listen", listen_to_one_that_closes)
    assert box.receive(wait_time_seconds=20) == []


def test_an_acknowledgement_that_was_not_made_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    box: Any = InMemoryMailbox("jobs")
    box.send("job")
    done = box.receive()
    for step in ("lease", "lease_now"):
        monkeypatch.setattr(box.store, step, closing(box))
    with pytest.raises(MailboxClosedError):
        box.exchange(done)
