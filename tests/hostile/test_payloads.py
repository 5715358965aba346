"""Hostile payloads on every backend: whoever receives is not hurt, whatever a stranger has sent."""

from typing import Any

import pytest

from tests.contract.shelf import Shelf
from tests.hostile.payloads import PAYLOADS
from weakincentives import connect
from weakincentives.cli.app import run as wink
from weakincentives.errors import WinkError
from weakincentives.runtime import Backoff, DLQPolicy, Worker, WorkerConfig, replay_dead_letters
from weakincentives.runtime.mailbox import Message
from weakincentives.runtime.mailbox.seam.store import Outgoing

FACTS = (
    *("id", "body", "payload", "attributes", "reply_to", "reply_channel", "enqueued_at"),
    *("first_received_at", "delivery_count", "nack_count", "is_finalized"),
)


class Places:
    """Opens mailboxes of one backend by name."""

    def __init__(self, open_box: Any, url: str | None) -> None:
        self.mailbox = open_box
        self.url = url


@pytest.fixture(params=["memory", "sqlite", "redis"])
def places(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if request.param == "memory":
        yield Places(Shelf().mailbox, None)
        return
    url = (
        f"sqlite:///{tmp_path_factory.mktemp('hostile')}/queues.db"
        if request.param == "sqlite"
        else request.getfixturevalue("redis_url")
    )
    with connect(url) as backend:
        for name in ("orders", "dead"):
            backend.mailbox(name).purge()
        yield Places(backend.mailbox, url)


def plant(box: Any) -> None:
    """Put every payload into the queue, and an honest message behind each of them."""
    for number, payload in enumerate(PAYLOADS.values()):
        box._plain.put_now((Outgoing(f"hostile-{number}", payload),))
        box.send({"honest": number})


def is_honest(message: Any) -> bool:
    try:
        return isinstance(message.body, dict) and "honest" in message.body
    except WinkError:
        return False


def everything(box: Any) -> list[Any]:
    got: list[Any] = []
    while messages := box.receive(max_messages=1000):
        got += messages
    return got


def test_a_consumer_can_look_at_settle_and_go_on(places: Places) -> None:
    box = places.mailbox("orders")
    plant(box)
    assert box.stats().pending == 2 * len(PAYLOADS)
    for seen in box.peek(1000):
        for fact in ("id", "body", "payload", "attributes", "enqueued_at"):
            _look(seen, fact)
        assert repr(seen)
    got = everything(box)
    assert len(got) == 2 * len(PAYLOADS)
    assert sum(map(is_honest, got)) == len(PAYLOADS)
    for message in got:
        for fact in FACTS:
            _look(message, fact)
        assert repr(message)
        message.expects_reply()
        assert message.extend_visibility(30)
        assert message.nack()
    for message in everything(box):
        try:
            message.acknowledge()
        except WinkError:
            # A caller may wait for its reply: nobody does, so this must not be the end.
            message.reply(None)
    assert box.approximate_count() == 0


def _look(thing: Any, fact: str) -> None:
    """Read a fact; only our own errors may come out."""
    try:
        getattr(thing, fact)
    except WinkError:
        pass


@pytest.mark.parametrize("told", [None, dict, int, list[dict[str, int]]])
def test_a_worker_dead_letters_what_it_cannot_read_and_goes_on(places: Places, told: Any) -> None:
    box, letters = places.mailbox("orders", body_type=told), places.mailbox("dead")
    plant(places.mailbox("orders"))
    seen = 0

    def handle(body: Any) -> None:
        nonlocal seen
        seen += 1
        if not isinstance(body, dict) or "honest" not in body:
            raise ValueError("not what was expected")

    worker: Worker[Any, Any] = Worker(
        box,
        handle,
        dlq=DLQPolicy(letters, max_delivery_count=1),
        config=WorkerConfig(batch=10, backoff=Backoff(base=0, cap=0)),
    )
    worker.run(max_iterations=2 * len(PAYLOADS), wait_time_seconds=0)
    assert box.approximate_count() == 0
    dead = everything(letters)
    expected = len(PAYLOADS) if told in (None, dict) else 2 * len(PAYLOADS)
    # Whose caller does not wait any more is skipped, and nothing is kept of it.
    assert expected - 5 <= len(dead) <= expected
    for letter in dead:
        assert letter.body.last_error_type
        letter.nack()
    replay_dead_letters(letters, places.mailbox("orders"))
    again = everything(places.mailbox("orders"))
    assert len(again) + letters.stats().total == len(dead)
    assert all(isinstance(message, Message) for message in again)


def test_the_command_line_shows_them(
    places: Places, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    if places.url is None:
        pytest.skip("there is no URL for it")
    plant(places.mailbox("orders"))
    for command in (["peek", "orders", "--limit", "200"], ["stats"], ["queues"]):
        for form in ([], ["--json"]):
            code = wink([*command, *form, "--url", places.url])
            shown = capfdbinary.readouterr()
            assert code == 0, shown.err[-2000:]
            assert shown.out
            assert b"Traceback" not in shown.err
            assert b"\x1b[2J" not in shown.out
