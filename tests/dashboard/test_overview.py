"""The page with all queues."""

from collections.abc import Callable

import pytest

from tests.dashboard.conftest import TOKEN, Asking
from weakincentives.runtime.mailbox.seam.backend import Backend


def test_html_and_json_say_the_same(backend: Backend, asking: Callable[..., Asking]) -> None:
    backend.mailbox("orders").send_batch(["a", "b"], delay_seconds=0)
    backend.mailbox("orders").send("later", delay_seconds=60)
    backend.mailbox("orders").receive()
    ask = asking()
    (row,) = ask.json("/")["queues"]
    assert (row["name"], row["pending"], row["in_flight"], row["delayed"]) == ("orders", 1, 1, 1)
    html = ask.html("/")
    assert 'href="/queues/orders"' in html
    assert '<td class="number" data-label="delayed">1</td>' in html


def test_the_address_holds_filter_sort_and_page(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    for number in range(120):
        backend.mailbox(f"queue-{number:03}").send_batch(["job"] * (number % 7 + 1))
    ask = asking()
    first = ask.json("/?sort=name")
    assert (first["pages"], first["total"], first["all"]) == (3, 120, 120)
    assert [row["name"] for row in first["queues"]] == [f"queue-{n:03}" for n in range(50)]
    assert len(ask.json("/?sort=name&page=3")["queues"]) == 20
    assert ask.json("/?page=99")["page"] == 3
    assert ask.json("/?page=-1&sort=nonsense")["sort"] == "trouble"
    found = ask.json("/?find=QUEUE-01&sort=pending")
    assert found["total"] == 10
    assert found["queues"][0]["pending"] == 7
    html = ask.html("/?find=queue&sort=name")
    assert 'href="?find=queue&amp;sort=name&amp;page=2"' in html


def test_a_filter_cannot_write_html(asking: Callable[..., Asking]) -> None:
    html = asking().html('/?find="><script>alert(1)</script>')
    assert "<script>alert" not in html
    assert "&lt;script&gt;alert(1)" in html


def test_an_error_text_cannot_write_html(
    backend: Backend, asking: Callable[..., Asking], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.dashboard.test_survey import raising

    backend.mailbox("orders").send("a")
    ask = asking()
    hostile = '"><script>alert(1)</script>'
    monkeypatch.setattr(type(backend.mailbox("orders")), "stats", lambda self: raising(hostile))
    ask.look()
    html = ask.html("/")
    assert "<script>alert" not in html
    assert html.count("&lt;script&gt;alert(1)") == 2


def test_below_a_prefix_every_link_keeps_it(
    backend: Backend, asking: Callable[..., Asking]
) -> None:
    backend.mailbox("orders").send("a")
    ask = asking(prefix="/ops/wink")
    ask.client.headers["Authorization"] = f"Bearer {TOKEN}"
    for path in ("/ops/wink/", "/"):  # a proxy may take the prefix away
        html = ask.html(path)
        assert 'href="/ops/wink/queues/orders"' in html
        assert 'src="/ops/wink/static/dashboard.js"' in html
        assert 'href="/"' not in html
    assert ask.client.get("/ops/wink/static/dashboard.css").status_code == 200


def test_pages_that_are_not_there(asking: Callable[..., Asking]) -> None:
    answer = asking().client.get("/nowhere", headers={"Accept": "application/json"})
    assert (answer.status_code, answer.json()) == (404, {"error": "Not Found"})
