"""Dead letters: found by their fingerprints, read, edited, replayed and discarded."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from testkit.waiting import eventually
from tests.dashboard.conftest import ALL, Asking
from weakincentives import connect
from weakincentives.dashboard import DashboardAction, Right, letters
from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime import DLQPolicy, Worker
from weakincentives.runtime.mailbox.seam.backend import Backend

HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture(params=["memory", "sqlite"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    url = "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/shop.db"
    with connect(url) as opened:
        yield opened


def out_of_stock(item: str) -> None:
    raise LookupError(f"no {item} {HOSTILE}")


def handle(body: Any) -> Any:
    if body["item"] == "unicorn":
        out_of_stock("unicorn")
    return {"sold": 100 // body["price"]}


def work(backend: Backend) -> None:
    box = backend.mailbox("orders")
    dlq = DLQPolicy(mailbox=backend.mailbox("orders-dlq"), max_delivery_count=1)
    count = max(box.stats().pending, 1)
    Worker(box, handle, dlq=dlq).run(max_iterations=count, wait_time_seconds=0)


@pytest.fixture
def failed(backend: Backend) -> Backend:
    """Six dead letters of two kinds."""
    box = backend.mailbox("orders")
    for number in range(4):
        box.send({"item": "unicorn", "price": number})
    for _ in range(2):
        box.send({"item": "tea", "price": 0}, attributes={"tenant": HOSTILE})
    work(backend)
    assert backend.mailbox("orders-dlq").stats().pending == 6
    return backend


def ended(ask: Asking, answer: Any) -> Any:
    assert answer.status_code == 303, answer.text
    where = answer.headers["location"]
    eventually(lambda: ask.json(where)["state"] != "running")
    return ask.json(where)


def test_letters_are_grouped_by_type_and_frame(
    failed: Backend, asking: Callable[..., Asking]
) -> None:
    ask = asking()
    assert [(one["name"], one["letters"]) for one in ask.json("/letters")["queues"]] == [
        ("orders-dlq", 6)
    ]
    assert 'href="/letters/orders-dlq"' in ask.html("/")
    page = ask.json("/letters/orders-dlq")
    assert [(one["error_type"], one["count"]) for one in page["groups"]] == [
        ("builtins.LookupError", 4),
        ("builtins.ZeroDivisionError", 2),
    ]
    assert page["groups"][0]["frame"] == "dashboard/test_letters.py in out_of_stock"
    assert sum(page["groups"][0]["bars"]) == 4
    assert (page["matching"], page["is_complete"]) == (6, True)
    found = ask.json(f"/letters/orders-dlq?find=fingerprint:{page['groups'][1]['fingerprint']}")
    assert [one["error_type"] for one in found["letters"]] == ["builtins.ZeroDivisionError"] * 2
    for find, count in (
        ("error:LookupError", 4),
        ("body.price:3", 1),
        ("unicorn", 4),
        ("nowhere", 0),
    ):
        assert ask.json(f"/letters/orders-dlq?find={find}")["matching"] == count, find


def test_nothing_in_a_letter_can_write_html(failed: Backend, asking: Callable[..., Asking]) -> None:
    ask = asking()
    html = ask.html("/letters/orders-dlq")
    for row in ask.json("/letters/orders-dlq")["letters"]:
        html += ask.html(f"/letters/orders-dlq/{row['id']}")
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert") > 8


def test_one_letter_shows_all_that_is_known(failed: Backend, asking: Callable[..., Asking]) -> None:
    ask = asking(trace_url="https://traces.example/{trace_id}")
    (row,) = ask.json("/letters/orders-dlq?find=body.price:2")["letters"]
    page = ask.json(f"/letters/orders-dlq/{row['id']}?place={row['place']}")
    assert json.loads(page["contents"]["text"]) == {"item": "unicorn", "price": 2}
    assert "in out_of_stock" in page["traceback"]
    assert page["row"]["deliveries"] == 1
    assert page["worker"]
    assert ask.client.get("/letters/orders-dlq/nobody").status_code == 404


def test_all_that_match_are_replayed_and_no_others(
    failed: Backend, asking: Callable[..., Asking]
) -> None:
    events: list[DashboardAction] = []
    dispatcher = InProcessDispatcher()
    dispatcher.subscribe(DashboardAction, events.append)
    ask = asking(*ALL, dispatcher=dispatcher)
    html = ask.html("/letters/orders-dlq?find=error:LookupError")
    assert ">Replay 4 that match<" in html
    view = ask.json("/letters/orders-dlq?find=error:LookupError")
    failed.mailbox("orders").send({"item": "unicorn", "price": 9})
    work(failed)  # one more that matches, after the page was made
    answer = ask.post(
        "/letters/orders-dlq",
        do="replay-matching",
        find="error:LookupError",
        most=str(view["matching"]),
        until=str(view["until"]),
    )
    run = ended(ask, answer)
    assert (run["state"], run["taken"]) == ("done", 4)
    assert "Replayed 4 of 4 dead letters" in ask.html(answer.headers["location"])
    assert failed.mailbox("orders").stats().pending == 4
    assert failed.mailbox("orders-dlq").stats().pending == 3
    eventually(lambda: len(events) == 1)
    (event,) = events
    assert (event.action, event.queue, event.outcome, event.count) == (
        "replay",
        "orders-dlq",
        "done",
        4,
    )
    assert event.detail == "error:LookupError"


def test_ticked_letters_are_discarded(failed: Backend, asking: Callable[..., Asking]) -> None:
    ask = asking()
    ids = [row["id"] for row in ask.json("/letters/orders-dlq")["letters"]]
    answer = ask.client.post(
        "/letters/orders-dlq",
        data={"do": "discard-ticked", "id": [ids[1], ids[4]]},
        headers={"Origin": "http://localhost:8400"},
        follow_redirects=False,
    )
    assert ended(ask, answer)["taken"] == 2
    left = [row["id"] for row in ask.json("/letters/orders-dlq")["letters"]]
    assert left == [id for id in ids if id not in (ids[1], ids[4])]
    assert ask.post("/letters/orders-dlq", do="discard-ticked").status_code == 400
    assert ask.post("/letters/orders-dlq", do="burn-matching").status_code == 400


def test_an_edited_letter_is_sent_and_its_caller_is_answered(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    reply = backend.mailbox("orders").send_expecting_reply(
        {"item": "tea", "price": 0}, reply_timeout=60
    )
    work(backend)
    ask = asking()
    (row,) = ask.json("/letters/orders-dlq")["letters"]
    edit = f"/letters/orders-dlq/{row['id']}/edit"
    wrong = ask.post(edit, body='{"item": "tea", "prize": "4"}')
    assert wrong.status_code == 409
    assert "body.price is missing" in wrong.text
    assert "body.prize is new" in wrong.text
    assert ask.post(edit, body="{").status_code == 400
    assert backend.mailbox("orders-dlq").stats().pending == 1
    assert ask.post(edit, body='{"item": "tea", "price": 4}').status_code == 303
    assert backend.mailbox("orders-dlq").stats().total == 0
    work(backend)
    assert reply.wait(timeout=10) == {"sold": 25}


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)  # memory decodes nothing
def test_a_body_of_the_wrong_type_is_shown_and_can_be_mended(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    dlq = DLQPolicy(mailbox=backend.mailbox("orders-dlq"))
    backend.mailbox("orders").send({"itme": "tea", "card": "4111"})
    typed = backend.mailbox("orders", body_type=dict[str, int])
    Worker(typed, handle, dlq=dlq).run(max_iterations=1, wait_time_seconds=0)
    ask = asking()
    (row,) = ask.json("/letters/orders-dlq")["letters"]
    contents = ask.json(f"/letters/orders-dlq/{row['id']}")["contents"]
    assert json.loads(contents["text"]) == {"itme": "tea", "card": "4111"}
    assert contents["note"] == "It could not be decoded."
    hiding = asking(redact=("card",)).json(f"/letters/orders-dlq/{row['id']}")["contents"]
    assert "tea" in hiding["text"]
    assert "4111" not in json.dumps(hiding)
    edit = f"/letters/orders-dlq/{row['id']}/edit"
    assert ask.post(edit, body='{"item": 4}').status_code == 303
    (mended,) = typed.receive()
    assert mended.body == {"item": 4}


@pytest.mark.parametrize(
    ("form", "missing"),
    [
        ({"do": "replay-ticked"}, Right.REPLAY),
        ({"do": "discard-ticked"}, Right.DISCARD),
        ({"body": "1"}, Right.SEND),
        ({"body": "1"}, Right.REPLAY),
    ],
)
def test_each_action_needs_its_right(
    failed: Backend, asking: Callable[..., Asking], form: dict[str, str], missing: Right
) -> None:
    ask = asking(*(right for right in Right if right is not missing))
    id = ask.json("/letters/orders-dlq")["letters"][0]["id"]
    path = f"/letters/orders-dlq/{id}/edit" if "body" in form else "/letters/orders-dlq"
    assert ask.post(path, id=id, **form).status_code == 403
    assert failed.mailbox("orders-dlq").stats().pending == 6
    if "body" in form:
        assert "/edit" not in ask.html(f"/letters/orders-dlq/{id}")


def test_many_letters_are_counted_in_the_background(
    failed: Backend, asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(letters, "MOST_LOOKED", 3)
    ask = asking()
    page = ask.json("/letters/orders-dlq?find=error:LookupError")
    assert (page["matching"], page["looked"], page["is_complete"]) == (3, 3, False)
    html = ask.html("/letters/orders-dlq?find=error:LookupError")
    assert "replay-matching" not in html
    answer = ask.post("/letters/orders-dlq", do="count-matching", find="error:LookupError")
    assert ended(ask, answer)["taken"] == 4
    assert failed.mailbox("orders-dlq").stats().pending == 6
    assert ">Replay 4</button>" in ask.html(answer.headers["location"])


def test_a_pass_can_be_stopped(failed: Backend, asking: Callable[..., Asking]) -> None:
    ask = asking()
    passes = ask.dashboard._parts.passes
    views: list[Any] = []
    made = passes.begin("replay", "orders-dlq", "", 6, None, views.append)

    class Letters:
        def watched_by(self, looked: Callable[[], None]) -> Iterator[int]:
            looked()
            yield 1
            assert ask.post(f"/passes/{made.view().id}/stop").status_code == 303
            looked()
            yield 2

    walk: Any = Letters()
    made.start(walk, lambda: None)
    eventually(lambda: len(views) == 1)
    assert (views[0].state, views[0].taken) == ("stopped", 1)


def test_hidden_fields_of_a_letter_cannot_be_edited(
    failed: Backend, asking: Callable[..., Asking]
) -> None:
    ask = asking(redact=("price",))
    id = ask.json("/letters/orders-dlq?find=unicorn")["letters"][0]["id"]
    page = ask.json(f"/letters/orders-dlq/{id}")
    assert json.loads(page["contents"]["text"]) == {"item": "unicorn", "price": "***"}
    assert "/edit" not in ask.html(f"/letters/orders-dlq/{id}")
    assert ask.json("/letters/orders-dlq?find=body.price:3")["matching"] == 0
