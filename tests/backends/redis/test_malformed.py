"""What somebody else wrote into the keys of a queue: it costs nobody but itself."""

import logging
import subprocess
import sys
from typing import Any, NamedTuple

import pytest

from testkit.servers import Standalone
from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.contrib.mailbox.contract.driver import background
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.dispatch import InProcessDispatcher
from weakincentives.runtime import Worker
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.runtime.mailbox.events import MessagesSetAside

Box = RedisMailbox[Any, Any]

BODY = b'{"b":"planted"}'
NOW = b"1763400000000"


class Shape(NamedTuple):
    """A record, where it is planted, its payload if it has one, and whether it is delivered."""

    record: bytes
    id: bytes | None = None
    payload: bytes = BODY
    delivered: bool = False
    readable: bool = True


SHAPES = {
    "no separator": Shape(b"garbage"),
    "no separator, with a payload": Shape(b"planted", b"planted", delivered=True),
    "nothing at all": Shape(b""),
    "an empty id": Shape(b"|" + NOW, b""),
    "separators only": Shape(b"|||||"),
    "no payload": Shape(b"gone|" + NOW),
    "no payload, leased before": Shape(b"gone|" + NOW + b"|1|0|" + NOW),
    "a time that is no number": Shape(b"planted|soon", b"planted", delivered=True),
    "no time": Shape(b"planted|", b"planted", delivered=True),
    "a time below zero": Shape(b"planted|-5", b"planted", delivered=True),
    "a time with a fraction": Shape(b"planted|1.5e3", b"planted", delivered=True),
    "a time beyond all times": Shape(b"planted|" + b"9" * 40, b"planted", delivered=True),
    "counts that are no numbers": Shape(b"planted|" + NOW + b"|a|b|c", b"planted", delivered=True),
    "too few counts": Shape(b"planted|" + NOW + b"|3", b"planted", delivered=True),
    "an empty count": Shape(b"planted|" + NOW + b"|||", b"planted", delivered=True),
    "too many counts": Shape(
        b"planted|" + NOW + b"|1|0|" + NOW + b"|x|y|z", b"planted", delivered=True
    ),
    "counts beyond all numbers": Shape(
        b"planted|" + NOW + b"|" + b"9" * 30 + b"|0|" + NOW, b"planted", delivered=True
    ),
    "the highest count that is read": Shape(
        b"planted|" + NOW + b"|" + b"9" * 14 + b"|0|" + NOW, b"planted", delivered=True
    ),
    "a first time beyond all times": Shape(
        b"planted|" + NOW + b"|1|0|" + b"9" * 40, b"planted", delivered=True
    ),
    "an id that is not text": Shape(b"\xff\xfe\x00|" + NOW, b"\xff\xfe\x00"),
    "an id with a line break": Shape(b"a\nb|" + NOW, b"a\nb"),
    "an id of other letters": Shape("häh|".encode() + NOW, "häh".encode()),
    "a huge id": Shape(b"x" * 1_000_000 + b"|" + NOW, b"x" * 1_000_000),
    "a huge record": Shape(b"planted|" + b"y" * 1_000_000, b"planted", delivered=True),
    "an empty payload": Shape(b"planted|" + NOW, b"planted", b"", delivered=True, readable=False),
    "a payload that is not JSON": Shape(
        b"planted|" + NOW, b"planted", b"\xff\x00{", delivered=True, readable=False
    ),
    "a payload that is no envelope": Shape(
        b"planted|" + NOW, b"planted", b"[1, 2]", delivered=True, readable=False
    ),
    "a huge payload": Shape(
        b"planted|" + NOW, b"planted", b'"' + b"z" * 20_000_000, delivered=True, readable=False
    ),
}
PLACES = ("pending", "invisible", "delayed")
SCORES = ("-inf", "0", "1e3")


def plant(server: Standalone, place: str, shape: Shape) -> None:
    with server.client() as raw:
        key = f"{{queue:box}}:{place}"
        if shape.id is not None:
            raw.hset("{queue:box}:data", shape.id, shape.payload)  # type: ignore[arg-type]
        if place == "pending":
            raw.rpush(key, shape.record)
        else:
            token = b"|token" if place == "invisible" else b""
            raw.execute_command("ZADD", key, "1000", shape.record + token)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("name", SHAPES)
def test_a_malformed_record_stops_nobody(server: Standalone, name: str, place: str) -> None:
    shape = SHAPES[name]
    events = InProcessDispatcher()
    aside: list[int] = []
    events.subscribe(MessagesSetAside, lambda event: aside.append(event.count))
    with server.client() as client, Box("box", client, dispatcher=events) as box:
        plant(server, place, shape)
        box.send("good")
        assert box.stats().total == 2
        assert box.peek()
        got = everything(box)
        bodies = [_body(message) for message in got]
        expected = ["planted" if shape.readable else None] if shape.delivered else []
        assert sorted(bodies, key=str) == sorted(["good", *expected], key=str)
        assert sum(aside) == box.stats().unreadable == 1 - len(expected)
        for message in got:
            assert message.enqueued_at
            assert message.first_received_at
            assert message.nack()
        for message in everything(box):
            assert message.extend_visibility(60)
            assert message.acknowledge()
        assert box.approximate_count() == 0
        assert server.command("HLEN", "{queue:box}:data") == 0
        box.send("next")
        assert [message.body for message in box.receive(wait_time_seconds=1)] == ["next"]


def everything(box: Box) -> list[Any]:
    """Receive until there is nothing more; what is large comes alone."""
    got: list[Any] = []
    while messages := box.receive(max_messages=5):
        got += messages
    return got


def _body(message: Any) -> Any:
    try:
        return message.body
    except SerializationError:
        return None


@pytest.mark.parametrize("retention", [None, 3600])
def test_many_malformed_records_before_a_good_one(
    server: Standalone, client: Any, retention: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    with Box("box", client, default_ttl=retention) as box, caplog.at_level(logging.WARNING):
        box.send("good")
        with server.client() as raw:
            raw.rpush("{queue:box}:pending", *(b"junk-%d" % n for n in range(5000)))
        (message,) = box.receive(wait_time_seconds=10)
        assert message.body == "good"
        assert message.acknowledge()
        assert "set aside" in caplog.text
        # What was set aside is kept up to a bound.
        assert server.command("LLEN", "{queue:box}:unreadable") == box.stats().unreadable == 100
        assert box.purge() == 0
        assert server.command("EXISTS", "{queue:box}:unreadable") == 0


def test_what_was_set_aside_can_be_read(server: Standalone, box: Box) -> None:
    plant(server, "pending", SHAPES["an id that is not text"])
    assert box.receive() == []
    with server.client() as raw:
        (kept,) = raw.lrange("{queue:box}:unreadable", 0, -1)
    assert kept == b"\xff\xfe\x00|" + NOW + b"\n" + BODY


@pytest.mark.parametrize("score", ["inf", "-inf", "1e300", "-1e300", "0.5"])
@pytest.mark.parametrize("place", ["invisible", "delayed"])
def test_strange_times(server: Standalone, box: Box, place: str, score: str) -> None:
    with server.client() as raw:
        raw.execute_command("ZADD", f"{{queue:box}}:{place}", score, b"far|" + NOW)
    assert box.stats().total in (0, 1)
    box.send("good")
    assert [message.body for message in box.receive(wait_time_seconds=1)] == ["good"]
    assert box.receive(wait_time_seconds=0.05) == []


KEYS = ("pending", "invisible", "data", "delayed", "wake", "sent", "unreadable")


@pytest.mark.parametrize("kind", ["string", "other"])
@pytest.mark.parametrize("part", KEYS)
def test_a_key_of_another_type_is_moved_aside(
    server: Standalone, box: Box, part: str, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"{{queue:box}}:{part}"

    def in_the_way() -> None:
        server.command("DEL", key)
        if kind == "string":
            server.command("SET", key, "mine")
        else:
            server.command("SADD", key, "mine")

    in_the_way()
    with caplog.at_level(logging.WARNING):
        box.send("one", message_id="one")
        box.send("two", delay_seconds=0.001, message_id="two")
        box.send_batch(["three", "four"])
        got = [*box.receive(max_messages=2, wait_time_seconds=1), *box.receive(wait_time_seconds=1)]
        in_the_way()
        got += box.receive(max_messages=4, wait_time_seconds=1)
        box.peek()
        box.stats()
        for message in got:
            try:
                message.acknowledge()
            except Exception:
                assert part == "invisible"
    if part not in ("pending", "invisible", "data", "delayed"):
        assert sorted(message.body for message in got) == ["four", "one", "three", "two"]
    if part in ("pending", "invisible", "data"):
        assert server.command("TYPE", f"{{queue:box}}:unreadable:{part}") != "none"
        assert "of the wrong type" in caplog.text
    box.purge()
    box.send("after")
    assert [message.body for message in box.receive(wait_time_seconds=1)] == ["after"]


@pytest.mark.parametrize("part", ["delayed", "wake"])
def test_a_key_of_another_type_costs_no_lease(server: Standalone, box: Box, part: str) -> None:
    """What a look has leased before it comes upon such a key is handed out all the same."""
    box.send_batch(["one", "two"])
    for message in box.receive(max_messages=2):  # so that there is something to bring back
        message.nack()
    server.command("DEL", f"{{queue:box}}:{part}")
    server.command("SET", f"{{queue:box}}:{part}", "mine")
    box.store.queue._promoted = float("inf")  # as in the middle of a backlog
    assert len(box.receive(max_messages=5)) == 2
    assert box.stats().in_flight == 2


def test_a_wake_token_of_another_type_makes_nobody_spin(server: Standalone, box: Box) -> None:
    server.command("SET", "{queue:box}:wake", "mine")
    server.command("CONFIG", "RESETSTAT")
    waiting = background(box.receive, wait_time_seconds=10)
    eventually(lambda: server.info("clients")["blocked_clients"] == "1", 60, "a blocked consumer")
    calls = server.info("commandstats")["cmdstat_evalsha"].split(",")[0]
    assert int(calls.removeprefix("calls=")) <= 10
    box.send("work")
    assert [message.body for message in waiting.result(120)] == ["work"]


@pytest.mark.parametrize("part", ["entry", "bell", "expiry"])
def test_a_key_of_another_type_among_the_replies(server: Standalone, box: Box, part: str) -> None:
    with server.client() as raw:
        for number in range(16):
            if part == "expiry":
                raw.set(f"{{replies:{number}}}:{part}", "mine")
    reply = box.send_expecting_reply("question")
    if part != "expiry":
        (key,) = server.command("KEYS", f"{{replies:*}}:entry:{reply.id}")
        key = key.replace(":entry:", f":{part}:")
        server.command("DEL", key)
        server.command("SET", key, "mine")
    (message,) = box.receive()
    message.reply("answer")
    if part != "entry":
        assert reply.wait(timeout=120) == "answer"


def test_a_key_of_another_type_costs_no_reply(server: Standalone, box: Box) -> None:
    """One step acknowledges, answers and leases; such a key ends it in the middle."""
    reply = box.send_expecting_reply("question")

    def answer(body: str) -> str:
        server.command("SET", "{queue:box}:pending", "mine")
        return "answer"

    Worker(box, answer).run(max_iterations=2, wait_time_seconds=0)
    assert reply.wait(timeout=1) == "answer"


def test_a_planted_queue_name_hides_no_other(
    server: Standalone, caplog: pytest.LogCaptureFixture
) -> None:
    with server.client() as raw:
        for name in (b"\xff\xfe", b"a b", b"", b"x" * 500, b"{nested}", "ü".encode(), b"a\nb"):
            raw.hset(b"{queue:" + name + b"}:data", "id", "payload")  # type: ignore[arg-type]
        raw.set("{queue:string}:data", "no hash")
    with connect(server.url) as backend, caplog.at_level(logging.WARNING):
        backend.mailbox("orders").send(1)
        assert backend.queues() == ["orders"]
    assert "ignored keys" in caplog.text


def test_a_worker_goes_on_behind_malformed_records(server: Standalone, box: Box) -> None:
    for name in SHAPES:
        if SHAPES[name].readable:
            plant(server, "pending", SHAPES[name])
    box.send("good")
    handled: list[Any] = []
    worker = Worker(box, handled.append)
    for _ in range(40):
        worker.run(max_iterations=1, wait_time_seconds=0)
    assert "good" in handled
    assert box.approximate_count() == 0


@pytest.mark.parametrize("form", [["--json"], []])
def test_what_was_set_aside_is_shown(server: Standalone, box: Box, form: list[str]) -> None:
    def stats() -> str:
        command = [sys.executable, "-m", "weakincentives.cli", "stats", "box", *form]
        run = subprocess.run(
            [*command, "--url", server.url], capture_output=True, text=True, timeout=120, check=True
        )
        return run.stdout

    assert "unreadable" not in stats()
    plant(server, "pending", SHAPES["no separator"])
    assert box.receive() == []
    assert "unreadable" in stats()
