"""The page of one queue: its messages, the search, and what can be done with it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.conftest import ALL, Asking
from weakincentives import connect
from weakincentives.dashboard import DashboardAction, Right, queue_page
from weakincentives.dashboard.search import Bounds
from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime.mailbox.seam.backend import Backend

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture
def stored(tmp_path: Path) -> Any:
    with connect(f"sqlite:///{tmp_path}/shop.db") as opened:
        yield opened


@pytest.fixture
def backend(stored: Backend) -> Backend:
    """Bodies are JSON here, as on every server."""
    return stored


def test_a_message_is_shown_exactly(backend: Backend, asking: Callable[..., Asking]) -> None:
    box = backend.mailbox("orders")
    id = box.send({"price": 1.10, "item": "tea", "big": 12345678901234567890, "who": "J\u202eoe"})
    ask = asking()
    (message,) = ask.json("/queues/orders")["messages"]
    assert message["id"] == id
    assert message["contents"]["text"] == (
        '{\n  "price": 1.1,\n  "item": "tea",\n  "big": 12345678901234567890,\n'
        '  "who": "J\\u202eoe"\n}'
    )
    assert message["contents"]["is_whole"]


@pytest.mark.parametrize(
    ("find", "places"),
    [
        ("body.customer.name:Ada", [3]),
        ("body.n:7", [7]),
        ("body.n=7", [7]),
        ("body.tags.1:b", list(range(10))),
        ("attributes.tenant:blue", [5]),
        ("body.n:3 body.customer.name:Ada", [3]),
        ("body.n:4 body.customer.name:Ada", []),
        ("ada", [3]),
        ('body.customer.name:"Ada L"', []),
        ("body.nothing:1", []),
    ],
)
def test_messages_are_found_by_what_they_contain(
    backend: Backend, asking: Callable[..., Asking], find: str, places: list[int]
) -> None:
    box = backend.mailbox("orders")
    for n in range(10):
        name = "Ada" if n == 3 else "Bob"
        body = {"n": n, "customer": {"name": name}, "tags": ["a", "b"]}
        box.send(body, attributes={"tenant": "blue"} if n == 5 else None)
    found = asking().client.get(
        "/queues/orders", params={"find": find}, headers={"Accept": "application/json"}
    )
    assert [message["place"] for message in found.json()["messages"]] == places


def test_a_message_is_found_by_its_id(backend: Backend, asking: Callable[..., Asking]) -> None:
    ids = backend.mailbox("orders").send_batch(list(range(5)))
    ask = asking()
    for find in (f"id:{ids[3]}", ids[3]):
        (message,) = ask.json(f"/queues/orders?find={find}")["messages"]
        assert message["id"] == ids[3]


def test_a_search_says_how_far_it_looked_and_goes_on_from_there(
    backend: Backend, asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_page, "Bounds", lambda found, _=0: Bounds(found, looked=400))
    backend.mailbox("orders").send_batch([{"n": n} for n in range(1000)])
    ask = asking()
    first = ask.json("/queues/orders?find=body.n:777")
    assert (first["messages"], first["looked_until"], first["next_start"]) == ([], 400, 400)
    assert "0 found in places 1 to 400 of 1,000" in ask.html("/queues/orders?find=body.n:777")
    second = ask.json("/queues/orders?find=body.n:777&start=400")
    assert [message["place"] for message in second["messages"]] == [777]


@pytest.mark.parametrize("find", ["'unclosed", "x" * 501, "colour:red", "older:soon"])
def test_a_search_that_cannot_be_read_is_an_error_of_the_asker(
    backend: Backend, asking: Callable[..., Asking], find: str
) -> None:
    backend.mailbox("orders").send("a")
    assert asking().client.get("/queues/orders", params={"find": find}).status_code == 400


def test_nothing_in_a_message_can_write_html(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    backend.mailbox("orders").send(
        {HOSTILE: [HOSTILE]}, attributes={"tenant": HOSTILE}, message_id="plain"
    )
    ask = asking()
    html = ask.client.get("/queues/orders", params={"find": HOSTILE.replace('"', "")}).text
    html += ask.html("/queues/orders")
    assert "plain" in html
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert") > 4


def test_without_the_right_nothing_of_a_body_is_shown_or_found(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    backend.mailbox("orders").send({"card": "4111"}, attributes={"tenant": "blue"})
    ask = asking(Right.REPLAY)
    html = ask.html("/queues/orders")
    assert "4111" not in html
    assert "blue" not in html
    assert "Bodies are not shown here." in html
    assert ask.json("/queues/orders?find=4111")["messages"] == []
    assert ask.json("/queues/orders?find=body.card:4111")["messages"] == []
    assert ask.json("/queues/orders?find=attributes.tenant:blue")["messages"] == []


def test_hidden_fields_are_neither_shown_nor_found(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    body = {"card": {"number": "4111", "kind": "visa"}, "items": [{"price": 7}, {"price": 8}]}
    backend.mailbox("orders").send(body)
    ask = asking(redact=("card.number", "items.*.price"))
    (message,) = ask.json("/queues/orders")["messages"]
    assert json.loads(message["contents"]["text"]) == {
        "card": {"number": "***", "kind": "visa"},
        "items": [{"price": "***"}, {"price": "***"}],
    }
    assert message["contents"]["raw"] is None
    assert not message["contents"]["is_whole"]
    for find in ("body.card.number:4111", "4111", "body.items.0.price:7"):
        assert ask.json(f"/queues/orders?find={find}")["messages"] == [], find


def test_a_message_is_sent_and_a_queue_purged(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    events: list[DashboardAction] = []
    dispatcher = InProcessDispatcher()
    dispatcher.subscribe(DashboardAction, events.append)
    ask = asking(*ALL, dispatcher=dispatcher)
    answer = ask.post("/queues/orders/send", body='{"item": "tea"}')
    assert answer.status_code == 303
    (sent,) = backend.mailbox("orders").peek()
    assert sent.body == {"item": "tea"}
    assert f"Sent as <code>{sent.id}</code>" in ask.html(answer.headers["location"])
    assert ask.post("/queues/orders/send", body="{").status_code == 400
    assert ask.post("/queues/orders/purge").status_code == 303
    assert backend.mailbox("orders").stats().total == 0
    assert [(one.action, one.queue, one.outcome, one.count) for one in events] == [
        ("send", "orders", "done", 1),
        ("send", "orders", "failed", 0),
        ("purge", "orders", "done", 1),
    ]
    assert events[0].client == "testclient"


@pytest.mark.parametrize("action", ["send", "purge"])
def test_an_action_without_its_right_is_refused_and_recorded(
    backend: Backend, asking: Callable[..., Asking], action: str
) -> None:
    backend.mailbox("orders").send("kept")
    events: list[DashboardAction] = []
    dispatcher = InProcessDispatcher()
    dispatcher.subscribe(DashboardAction, events.append)
    others = [right for right in Right if right.value != action]
    ask = asking(*others, dispatcher=dispatcher)
    assert ask.post(f"/queues/orders/{action}", body="1").status_code == 403
    assert backend.mailbox("orders").stats().total == 1
    assert [(one.action, one.outcome) for one in events] == [(action, "refused")]
    assert f'action="/queues/orders/{action}"' not in ask.html("/queues/orders")


@pytest.mark.parametrize("name", ["{x}", "a b", "x" * 81])
def test_a_name_that_no_queue_can_have(asking: Callable[..., Asking], name: str) -> None:
    assert asking().client.get(f"/queues/{name}").status_code == 400
