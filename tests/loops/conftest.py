"""Servers and mailboxes for the loops' tests."""

import inspect
import threading

import pytest

from tests.contract.shelf import Shelf
from tests.services import redis_url
from weakincentives import connect
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


@pytest.fixture(params=["memory", "sqlite", "redis"])
def backend(request, tmp_path):
    url = {
        "memory": lambda: "memory://",
        "sqlite": lambda: f"sqlite:///{tmp_path}/queues.db",
        "redis": lambda: request.getfixturevalue("redis_url"),
    }[request.param]()
    with connect(url) as backend:
        for name in ("jobs", "dead", "answers"):
            backend.mailbox(name).purge()
        yield backend


@pytest.fixture(params=["plain", "async"])
def made(request):
    """Turns a function of a body and a job into a handler, plain or async."""

    def make(function):
        if request.param == "plain":
            return lambda body, job: function(body, job)

        async def handler(body, job):
            result = function(body, job)
            return await result if inspect.isawaitable(result) else result

        return handler

    make.is_async = request.param == "async"
    return make
