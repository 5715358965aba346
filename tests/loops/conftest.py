"""Servers and mailboxes for the loops' tests."""

import threading

import pytest

from tests.contract.shelf import Shelf
from tests.services import redis_url
from weakincentives.runtime import InMemoryMailbox
from weakincentives.runtime.worker.quarantine import QUARANTINE

__all__ = ["redis_url"]


@pytest.fixture(autouse=True)
def no_hands_left():
    """Fail the test whose loop has not left: a job that must run alone would wait for it."""
    yield
    here = threading.get_ident()
    left = [hands for hands, thread in QUARANTINE._present() if thread == here]
    for hands in left:
        QUARANTINE.leave(hands)
    assert left == []


@pytest.fixture
def box():
    return InMemoryMailbox("jobs")


@pytest.fixture
def replies():
    return InMemoryMailbox("replies")


@pytest.fixture(params=["objects", "json", "bytes"])
def shelf(request):
    """Opens mailboxes that keep objects, objects through JSON, or bytes."""
    if request.param == "bytes":
        return Shelf().mailbox
    return lambda name, **options: InMemoryMailbox(
        name, serialize=request.param == "json", **options
    )


@pytest.fixture
def letters(shelf):
    return shelf("orders-dlq")
