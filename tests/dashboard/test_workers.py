"""Who serves the queues, and a queue that is paused for all of them."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from testkit.waiting import eventually
from tests.dashboard.conftest import ALL, Asking
from weakincentives.dashboard import DashboardAction, Right
from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime import HeldMessage, LoopInfo, Worker, WorkerInfo
from weakincentives.runtime.mailbox import UnsupportedOperationError
from weakincentives.runtime.mailbox.seam.backend import Backend

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def serving(backend: Backend) -> Iterator[list[Any]]:
    """A worker that notes what it has handled."""
    handled: list[Any] = []
    worker = Worker(backend.mailbox("orders"), handled.append)
    thread = threading.Thread(target=worker.run, kwargs={"wait_time_seconds": 1})
    thread.start()
    yield handled
    worker.shutdown(timeout=30)
    thread.join()


def refreshed(ask: Asking) -> Asking:
    """Let the survey read the workers now, not after some seconds."""
    ask.dashboard._parts.survey.workers._next = 0.0
    ask.look()
    return ask


def test_a_worker_that_runs_is_listed(
    backend: Backend, serving: list[Any], asking: Callable[..., Asking]
) -> None:
    backend.mailbox("orders").send("tea", delay_seconds=3600)
    ask = asking()
    eventually(lambda: refreshed(ask).json("/workers")["workers"])
    (worker,) = ask.json("/workers")["workers"]
    assert [(one["mailbox"], one["concurrency"]) for one in worker["loops"]] == [("orders", 1)]
    assert f"{worker['host']}:{worker['pid']}" in ask.html("/workers?find=ORDERS")
    assert ask.json("/workers?find=nobody")["total"] == 0
    assert ask.json("/")["queues"][0]["places"] == 1
    assert ask.json("/queues/orders")["places"] == 1


def listed(number: int) -> WorkerInfo:
    held = HeldMessage("orders", f"m-{number}", 2, 100.0 + number, -1.0)
    loop = LoopInfo("orders", 10, 1, 4.0)
    now = datetime.now(UTC)
    return WorkerInfo(
        f"w-{number}", f"host-{number}{HOSTILE}", number, "1.0", now, (loop,), 1, (held,), 30.0
    )


def test_a_thousand_workers_are_paged_and_none_can_write_html(
    backend: Backend, asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.mailbox("orders").send("tea")
    monkeypatch.setattr(type(backend), "workers", lambda self: [listed(n) for n in range(1000)])
    ask = asking()
    page = ask.json("/workers?page=20")
    assert (len(page["workers"]), page["pages"], page["total"]) == (50, 20, 1000)
    assert page["workers"][0]["is_silent"]
    html = ask.html("/workers") + ask.html("/queues/orders")
    assert "<script>alert" not in html
    assert "event loop 4 s late" in html
    held = ask.json("/queues/orders")["held"]
    assert [one["message_id"] for one in held[:2]] == ["m-999", "m-998"]
    assert len(held) == 20
    assert ask.json("/")["queues"][0]["places"] == 10_000


def test_a_queue_whose_handler_is_slower_than_its_lease_is_in_trouble(
    backend: Backend, asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    def held(queue: str, seen: float, left: float) -> WorkerInfo:
        message = HeldMessage(queue, f"of-{queue}", 2, 60.0, left)
        loop = LoopInfo(queue, 1, 1)
        return WorkerInfo(queue, "host", 1, "1", datetime.now(UTC), (loop,), 1, (message,), seen)

    entries = [held("slow", 2.0, -5.0), held("fine", 4.9, -3.0), held("dead", 15.0, -3.0)]
    monkeypatch.setattr(type(backend), "workers", lambda self: entries)
    for queue in ("slow", "fine", "dead"):
        backend.mailbox(queue).send("tea")
    ask = asking()
    rows = {row["name"]: row["badges"] for row in ask.json("/")["queues"]}
    assert rows == {"slow": ["lease over"], "fine": [], "dead": []}
    for queue, is_over in (("slow", True), ("fine", False), ("dead", True)):
        (message,) = ask.json(f"/queues/{queue}")["held"]
        assert message["lease_is_over"] is is_over
        assert (">over<" in ask.html(f"/queues/{queue}")) is is_over


def test_a_backend_that_cannot_list_workers_says_so(
    backend: Backend, asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Any) -> Any:
        raise UnsupportedOperationError("not here")

    monkeypatch.setattr(type(backend), "workers", refuse)
    ask = asking()
    assert not ask.json("/workers")["is_supported"]
    assert "has no place" in ask.html("/workers")


def test_a_queue_is_paused_for_all_workers_and_resumed(
    backend: Backend, serving: list[Any], asking: Callable[..., Asking]
) -> None:
    events: list[DashboardAction] = []
    dispatcher = InProcessDispatcher()
    dispatcher.subscribe(DashboardAction, events.append)
    ask = asking(*ALL, dispatcher=dispatcher)
    assert ask.post("/queues/orders/pause", because=f"tea is out {HOSTILE}").status_code == 303
    backend.mailbox("orders").send("tea")
    ask.look()
    (row,) = ask.json("/")["queues"]
    assert row["badges"] == ["paused"]
    page = ask.json("/queues/orders")
    assert page["pause"]["because"] == f"tea is out {HOSTILE}"
    assert page["pause"]["by"] == "dashboard, asked by testclient"
    html = ask.html("/queues/orders")
    assert "<script>alert" not in html
    assert "tea is out" in html
    assert serving == []
    assert ask.post("/queues/orders/resume").status_code == 303
    eventually(lambda: serving == ["tea"])
    assert [(one.action, one.outcome, one.detail) for one in events] == [
        ("pause", "done", f"tea is out {HOSTILE}"),
        ("pause", "done", "resumed"),
    ]


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_pausing_needs_its_right(
    backend: Backend, asking: Callable[..., Asking], action: str
) -> None:
    backend.mailbox("orders").send("tea")
    ask = asking(*(right for right in Right if right is not Right.PAUSE))
    assert ask.post(f"/queues/orders/{action}").status_code == 403
    assert backend.paused() == []
    assert "/pause" not in ask.html("/queues/orders")
