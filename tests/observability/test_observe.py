from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from tests.loops.test_worker import Note, Notes
from weakincentives.observability import observe
from weakincentives.observability.observe import ServedMailbox
from weakincentives.runtime import (
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    InProcessDispatcher,
    InvalidParameterError,
    LoopGroup,
    Worker,
    WorkerConfig,
)
from weakincentives.runtime.events import JobFinished, LoopEvent
from weakincentives.runtime.mailbox.events import MailboxEvent, MessageSent

from .test_prometheus import drain


class Listener:
    """A subscriber that remembers everything."""

    def __init__(self) -> None:
        self.dispatchers: list[Any] = []
        self.events: list[Any] = []
        self.served: list[ServedMailbox] = []

    def subscribe_to(self, dispatcher: Any) -> None:
        if dispatcher not in self.dispatchers:
            self.dispatchers.append(dispatcher)
            dispatcher.subscribe(MailboxEvent, self.events.append)
            dispatcher.subscribe(LoopEvent, self.events.append)

    def watch(self, served: ServedMailbox) -> None:
        self.served.append(served)

    def count(self, kind: type) -> int:
        return sum(type(event) is kind for event in self.events)


@pytest.fixture
def listener() -> Listener:
    return Listener()


def backend_of_memory(tmp_path: Path) -> Any:
    return weakincentives.connect("memory://")


def backend_of_sqlite(tmp_path: Path) -> Any:
    return weakincentives.connect(f"sqlite:///{tmp_path}/jobs.db")


@pytest.mark.parametrize("connect", [backend_of_memory, backend_of_sqlite])
def test_a_backend_with_the_mailboxes_of_now_and_later(
    connect: Callable[[Path], Any], tmp_path: Path, listener: Listener
) -> None:
    with connect(tmp_path) as backend:
        before = backend.mailbox("before")
        observe(backend, listener)
        after = backend.mailbox("after")
        before.send(1)
        after.send(2)
        observe(backend, listener)
        after.send(3)
    assert [event.mailbox for event in listener.events] == ["before", "after", "after"]


def test_a_worker_that_was_made_before(listener: Listener) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    worker = Worker(box, str)
    observe(box, listener)
    box.send("tea")
    drain(worker)
    assert listener.count(JobFinished) == 1
    assert listener.served == []


def test_all_that_a_loop_uses(listener: Listener) -> None:
    orders, letters, results = (InMemoryMailbox[Any, Any](name) for name in ("o", "l", "r"))
    worker = Worker(
        orders, str, responses=results, dlq=DLQPolicy(letters), config=WorkerConfig(concurrency=3)
    )
    consumer = DLQConsumer(mailbox=letters, handler=print)
    observe(LoopGroup([LoopGroup([worker]), consumer]), listener)
    assert {box.dispatcher for box in (orders, letters, results)} == set(listener.dispatchers)
    assert len(listener.dispatchers) == 1
    assert listener.served == [
        ServedMailbox(orders, 3, False),
        ServedMailbox(letters, 0, True),
        ServedMailbox(letters, 1, True),
    ]


def test_dispatchers_of_the_user_are_kept(listener: Listener) -> None:
    of_mailbox, of_loop = InProcessDispatcher(), InProcessDispatcher()
    own: list[Any] = []
    of_mailbox.subscribe(MessageSent, own.append)
    box = InMemoryMailbox[str, Any]("orders", dispatcher=of_mailbox)
    worker = Worker(box, str, config=WorkerConfig(dispatcher=of_loop))
    observe(worker, listener)
    box.send("tea")
    drain(worker)
    assert listener.dispatchers == [of_mailbox, of_loop]
    assert len(own) == listener.count(MessageSent) == listener.count(JobFinished) == 1


def test_anybodys_mailbox(listener: Listener) -> None:
    worker = Worker(Notes(Note("tea")), str)
    observe(worker, listener)
    drain(worker)
    assert listener.count(JobFinished) == 1


def test_anybodys_loop_in_a_group_is_left_alone(listener: Listener) -> None:
    box = InMemoryMailbox[str, Any]("orders")

    class Loop:
        running = False
        heartbeat = None

        def run(self) -> None: ...

        def shutdown(self) -> None: ...

    observe(LoopGroup([Loop(), Worker(box, str)]), listener)  # type: ignore[list-item]
    assert [served.mailbox for served in listener.served] == [box]


def test_what_cannot_be_observed(listener: Listener) -> None:
    with pytest.raises(InvalidParameterError, match="not a list"):
        observe([], listener)
    with pytest.raises(InvalidParameterError, match="needs a subscriber"):
        observe(InMemoryMailbox[str, Any]("orders"))
