"""``wink dlq`` and ``wink move``: find messages, send them again, throw them away, move them."""

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from testkit.servers.aws import ENVIRONMENT, REGION
from testkit.waiting import eventually
from tests.cli.wink import Wink
from tests.services import aws_endpoint, redis_url
from weakincentives.cli import passes
from weakincentives.cli.backends import store_mailbox
from weakincentives.ids import new_id
from weakincentives.runtime import DLQPolicy, Worker
from weakincentives.runtime.dead_letters.fingerprint import fingerprint_of
from weakincentives.runtime.leases import walk
from weakincentives.runtime.mailbox.seam.backend import Backend

__all__ = ["aws_endpoint", "redis_url"]


class SoldOut(Exception):
    pass


def check_stock(item: str) -> None:
    raise SoldOut(f"no {item} left")


def handle(order: dict[str, Any]) -> None:
    if order["item"] == "unicorn":
        check_stock(order["item"])
    raise LookupError("which item?")


@pytest.fixture(params=["sqlite", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'test.db'}"
    found: str = request.getfixturevalue("redis_url")
    return found


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    with weakincentives.connect(url) as opened:
        for queue in opened.queues():  # of the test before
            opened.mailbox(queue).purge()
        yield opened


@pytest.fixture
def wink(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Wink:
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return Wink(url, capsys)


def give_up(backend: Backend, *orders: dict[str, Any]) -> None:
    """Send orders and let each become a dead letter."""
    box = backend.mailbox("orders")
    for order in orders:
        box.send(order, attributes={"shop.tenant": str(order.get("tenant"))})
    policy: Any = DLQPolicy(backend.mailbox("dead"), max_delivery_count=1)
    Worker(box, handle, dlq=policy).run(max_iterations=len(orders), wait_time_seconds=0)


ORDERS: list[dict[str, Any]] = [
    {"item": "unicorn", "user": {"id": 7}, "tenant": "x"},
    {"item": "tea", "user": {"id": 8}, "tags": ["hot", "new"]},
    {"item": "unicorn", "user": {"id": 8}},
]


def test_letters_are_grouped_by_error_and_place(wink: Wink, backend: Backend) -> None:
    give_up(backend, *ORDERS)
    first, second = wink.json("dlq", "list", "dead")
    assert (first["count"], second["count"]) == (2, 1)
    assert first["error_type"] == "tests.cli.test_dlq.SoldOut"
    assert first["frame"] == "cli/test_dlq.py in check_stock"
    assert first["sources"] == ["orders"]
    assert second["error_type"] == "builtins.LookupError"
    assert second["frame"] == "cli/test_dlq.py in handle"
    assert "SoldOut" in wink.ok("dlq", "list", "dead")
    assert len(wink.json("dlq", "list", "dead", "--each")) == 3
    (shown,) = wink.json("dlq", "list", "dead", "--each", "error=LookupError")
    assert shown["fingerprint"] == second["fingerprint"]
    (whole,) = wink.json("dlq", "show", "dead", shown["message_id"])
    assert whole["body"] == ORDERS[1]
    assert whole["id"] == shown["id"]
    assert "in handle" in whole["traceback"]
    assert "which item?" in wink.ok("dlq", "show", "dead", shown["id"])
    assert wink("dlq", "show", "dead", "nosuch")[0] == 1
    assert backend.mailbox("dead").stats().pending == 3


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ([], 3),
        (["error=SoldOut"], 2),
        (["error=Out"], 0),
        (["error=tests.cli.test_dlq.SoldOut", "body.user.id=8"], 1),
        (["source=orders", "body.item=tea"], 1),
        (["source=other"], 0),
        (["body.tags.1=new"], 1),
        (["body.user.nosuch=null"], 0),
        (["attributes.shop.tenant=x"], 1),
        (["older=1h"], 0),
        (["newer=1h", "older=0"], 3),
    ],
)
def test_filters_choose_letters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], filters: list[str], count: int
) -> None:
    wink = Wink(f"sqlite:///{tmp_path / 'test.db'}", capsys)
    with weakincentives.connect(wink.url) as backend:
        give_up(backend, *ORDERS)
    assert len(wink.json("dlq", "list", "dead", "--each", *filters)) == count


@pytest.mark.parametrize("bad", ["colour=red", "error", "body=1", "older=soon", "id"])
def test_a_bad_filter_is_said_to_be_one(wink: Wink, backend: Backend, bad: str) -> None:
    give_up(backend, ORDERS[0])
    code, out, err = wink("dlq", "discard", "dead", bad, "--yes")
    assert (code, out) == (2, "")
    assert bad.partition("=")[0] in err
    assert backend.mailbox("dead").stats().pending == 1


def test_nothing_is_done_before_it_is_shown(wink: Wink, backend: Backend) -> None:
    give_up(backend, *ORDERS)
    for command in ("replay", "discard"):
        code, out, err = wink("dlq", command, "dead", "error=SoldOut")
        assert (code, err) == (0, "wink: nothing was done yet; pass --yes to do it\n")
        assert "2 dead letters to" in out
        (told,) = wink.json("dlq", command, "dead", "error=SoldOut", "--dry-run")
        assert (told["matching"], told["done"]) == (2, 0)
        assert told["groups"][0]["count"] == 2
    assert backend.mailbox("dead").stats().pending == 3
    assert backend.mailbox("orders").stats().total == 0


def test_letters_are_replayed_and_discarded(wink: Wink, backend: Backend) -> None:
    give_up(backend, *ORDERS)
    (told,) = wink.json("dlq", "replay", "dead", "error=SoldOut", "--yes")
    assert told == {
        "queue": "dead",
        "action": "replay",
        "matching": None,
        "done": 2,
        "stopped": False,
    }
    received = backend.mailbox("orders").receive(max_messages=10)
    assert [message.body for message in received] == [ORDERS[0], ORDERS[2]]
    assert "discarded 1 dead letter of dead" in wink.ok("dlq", "discard", "dead", "--yes")
    assert backend.mailbox("dead").stats().total == 0
    assert "No dead letter of dead matches" in wink("dlq", "replay", "dead")[1]


def test_a_replayed_letter_goes_where_it_is_told(wink: Wink, backend: Backend) -> None:
    give_up(backend, ORDERS[0])
    assert wink("dlq", "replay", "dead", "--to", "dead", "--yes")[0] == 2
    assert wink("dlq", "replay", "dead", "--to", "bad name", "--yes")[0] == 2
    wink.ok("dlq", "replay", "dead", "--to", "later", "--yes")
    assert backend.mailbox("later").stats().pending == 1
    assert backend.mailbox("orders").stats().total == 0


def test_the_caller_of_a_replayed_letter_is_answered(wink: Wink, backend: Backend) -> None:
    box, dead = backend.mailbox("orders"), backend.mailbox("dead")
    reply = box.send_expecting_reply({"item": "tea"}, keep=60)
    policy: Any = DLQPolicy(dead, max_delivery_count=1)
    Worker(box, handle, dlq=policy).run(max_iterations=1, wait_time_seconds=0)
    (shown,) = wink.json("dlq", "show", "dead", reply.id)
    assert shown["reply_id"] == reply.id
    wink.ok("dlq", "replay", "dead", "--yes")
    Worker(box, lambda order: order["item"]).run(max_iterations=1, wait_time_seconds=0)
    assert backend.reply(reply.id).wait(timeout=10) == "tea"


def test_a_stopped_pass_keeps_what_is_done_and_leaves_the_rest(
    wink: Wink, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    give_up(backend, *ORDERS)
    looked = passes.Looked.__call__

    def interrupt_at_the_second(self: passes.Looked) -> None:
        if self._count == 1:
            signal.raise_signal(signal.SIGINT)
        looked(self)

    monkeypatch.setattr(passes.Looked, "__call__", interrupt_at_the_second)
    code, out, _ = wink("dlq", "discard", "dead", "--yes")
    assert code == 130
    assert out == "discarded 1 dead letter of dead; stopped, and the rest was left alone\n"
    assert backend.mailbox("dead").stats().pending == 2


def test_a_terminal_is_asked(wink: Wink, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    give_up(backend, *ORDERS)
    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    code, out, _ = wink("dlq", "discard", "dead", "error=SoldOut")
    assert code == 0
    assert "Discard 2 dead letters of dead?" in out
    assert backend.mailbox("dead").stats().pending == 3
    monkeypatch.setattr(sys, "stdin", Terminal("y\n"))
    assert "discarded 2 dead letters" in wink("dlq", "discard", "dead", "error=SoldOut")[1]
    assert backend.mailbox("dead").stats().pending == 1


def test_messages_that_are_not_letters_are_left_alone(wink: Wink, backend: Backend) -> None:
    give_up(backend, ORDERS[0])
    backend.mailbox("dead").send({"no": "letter"})
    code, out, err = wink("dlq", "discard", "dead", "--yes")
    assert (code, err) == (0, "wink: left out 1 message that is not a dead letter\n")
    assert "discarded 1" in out
    assert backend.mailbox("dead").stats().pending == 1


def test_a_list_says_whether_there_are_no_letters_or_none_that_match(
    wink: Wink, backend: Backend
) -> None:
    backend.mailbox("orders").send_batch([1, 2])
    code, out, err = wink("dlq", "list", "orders")
    assert (code, out) == (0, "There are no dead letters in orders.\n")
    assert "wink: left out 2 messages that are not dead letters\n" in err
    assert "No dead letter of orders matches" in wink("dlq", "list", "orders", "error=X")[1]


def test_a_body_that_could_not_be_decoded_is_shown_as_text(wink: Wink, backend: Backend) -> None:
    backend.mailbox("orders").send({"item": "tea\x1b"})
    policy: Any = DLQPolicy(backend.mailbox("dead"))
    box = backend.mailbox("orders", body_type=dict[str, int])
    Worker(box, print, dlq=policy).run(max_iterations=1, wait_time_seconds=0)
    (letter,) = wink.json("dlq", "list", "dead", "--each")
    shown = wink.ok("dlq", "show", "dead", letter["id"])
    assert '{"b":{"item":"tea' in shown
    assert "\x1b" not in shown


def test_a_list_says_how_far_it_looked(wink: Wink, backend: Backend) -> None:
    give_up(backend, *ORDERS)
    code, out, err = wink("dlq", "list", "dead", "--scan", "2")
    assert code == 0
    assert err == "wink: looked at the first 2 of 3; --scan 0 looks at all\n"
    assert "2 dead letters in dead" in out
    assert backend.mailbox("dead").stats().pending == 3


# --- move -----------------------------------------------------------------------------------


def test_messages_are_moved(wink: Wink, backend: Backend) -> None:
    box, other = backend.mailbox("orders"), backend.mailbox("other")
    ids = [box.send({"n": n}, attributes={"t": str(n)}) for n in range(3)]
    (told,) = wink.json("move", "orders", "other", "body.n=1", "--dry-run")
    assert (told["matching"], told["done"], told["to"]) == (1, 0, "other")
    wink.ok("move", "orders", "other", "body.n=1", "--yes")
    wink.ok("move", "orders", "other", f"id={ids[2]}", f"id={ids[0]}", "--yes")
    moved = other.receive(max_messages=10)
    assert sorted((one.body["n"], one.attributes["t"]) for one in moved) == [
        (0, "0"),
        (1, "1"),
        (2, "2"),
    ]
    assert box.stats().total == 0
    assert wink("move", "orders", "orders", "--yes")[0] == 2


def test_a_message_can_be_moved_there_and_back_again(wink: Wink, backend: Backend) -> None:
    backend.mailbox("a").send(1, message_id="chosen")
    for source, target in ("ab", "ba", "ab", "ba"):
        wink.ok("move", source, target, "--yes")
        assert backend.mailbox(target).stats().pending == 1
        assert backend.mailbox(source).stats().total == 0


def test_the_caller_of_a_moved_message_is_answered(wink: Wink, backend: Backend) -> None:
    reply = backend.mailbox("orders").send_expecting_reply({"item": "tea"}, keep=60)
    wink.ok("move", "orders", "other", "--yes")
    worker: Any = Worker(backend.mailbox("other"), lambda order: order["item"])
    worker.run(max_iterations=1, wait_time_seconds=0)
    assert backend.reply(reply.id).wait(timeout=10) == "tea"


def test_a_move_that_is_killed_and_repeated_doubles_nothing(
    wink: Wink, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, other = store_mailbox(backend, "orders"), backend.mailbox("other")
    box.send({"n": 1})

    def die(*_: object, **__: object) -> None:
        raise SystemExit(9)  # sent, but not acknowledged

    with monkeypatch.context() as patch:
        patch.setattr(type(box._plain), "acknowledge_now", die)
        patch.setattr(walk, "LEASE", 0.05)
        assert wink("move", "orders", "other", "--yes")[0] == 9
    (moved,) = other.receive()
    eventually(lambda: box.stats().pending == 1)
    wink.ok("move", "orders", "other", "--yes")
    assert box.stats().total == 0
    assert other.stats().total == 1
    moved.acknowledge()
    assert other.stats().total == 0


def test_on_sqs(
    aws_endpoint: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    url = f"sqs://{REGION}?prefix=dlq-{new_id()}-&endpoint={aws_endpoint}&create=on"
    wink = Wink(url, capsys)
    with weakincentives.connect(url) as backend:
        give_up(backend, *ORDERS)
        backend.mailbox("other")
        assert [group["count"] for group in wink.json("dlq", "list", "dead")] == [2, 1]
        (told,) = wink.json("dlq", "replay", "dead", "error=SoldOut", "--yes")
        assert told["done"] == 2
        (told,) = wink.json("move", "orders", "other", "body.user.id=7", "--yes")
        assert told["done"] == 1
        assert [one.body for one in backend.mailbox("other").receive()] == [ORDERS[0]]
        assert backend.mailbox("orders").stats().pending == 1
        assert "discarded 1" in wink.ok("dlq", "discard", "dead", "--yes")


def test_the_fingerprint_of_an_error_in_a_library_names_the_users_code() -> None:
    class Letter:
        last_error_type = "json.JSONDecodeError"
        traceback = (
            "Traceback (most recent call last):\n"
            '  File "/app/cause.py", line 3, in cause\n'
            "builtins.KeyError: 1\n"
            "which caused:\n"
            "Traceback (most recent call last):\n"
            '  File "/app/venv/lib/python3.12/site-packages/weakincentives/x.py", line 3, in call\n'
            '  File "C:\\shop\\orders.py", line 12, in handle\n'
            "    json.loads(text)\n"
            '  File "/usr/lib/python3.12/json/decoder.py", line 355, in raw_decode\n'
            "json.JSONDecodeError: no\n"
        )

    found: Any = Letter()
    before = fingerprint_of(found)
    assert before.frame == "shop/orders.py in handle"
    Letter.traceback = Letter.traceback.replace("line 12", "line 13")
    assert fingerprint_of(found) == before
    Letter.traceback = ""
    assert fingerprint_of(found).frame is None
