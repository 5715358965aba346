"""What a reply knows of its job: repeats, a full server, parts as a stream, bad entries."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from testkit.proxy import Proxy
from testkit.servers import Standalone
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.contract.driver import background
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis.client import script_client
from weakincentives.contrib.mailbox.redis.replies import RedisReplyTable
from weakincentives.runtime.mailbox import (
    MailboxFullError,
    ReplyError,
    SerializationError,
)
from weakincentives.runtime.mailbox.receive import exchange_now
from weakincentives.runtime.mailbox.seam.reply_table import (
    MOST_PART_BYTES,
    JobStart,
    ReplyState,
)
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]

OWNER = "orders/1"
FIRST = JobStart("handle-1", "host:1", 1)
VALUE = b'{"b":1}'


def table_of(client: Any) -> Any:
    return RedisReplyTable(script_client(client))


def key(server: Standalone, part: str, id: str) -> str:
    """Return the key of a part of a reply's keys."""
    (found,) = server.command("KEYS", f"{{replies:*}}:entry:{id}")
    return str(found).replace(":entry:", f":{part}:")


def started(table: Any, id: str = "id", *, keep: float = 0.0) -> None:
    assert driven(table.create(id, 60.0, OWNER, keep))
    assert driven(table.start(id, OWNER, FIRST)).start.series == 1


def test_steps_whose_answer_is_lost_count_once(proxy: Proxy) -> None:
    with redis.Redis(port=proxy.port) as client:
        table = table_of(client)
        driven(table.create("id", 60.0, OWNER))
        proxy.lose_answer(b"\r\nstart\r\n")
        assert driven(table.start("id", OWNER, FIRST)).start.series == 1
        proxy.lose_answer(b"part-0")
        assert driven(table.emit("id", OWNER, "handle-1", [b"part-0", b"part-1"]))
        proxy.lose_answer(b"\r\nparts\r\n")
        rows = driven(table.parts("id", 0, 10))
        assert [(row.number, row.payload) for row in rows] == [(0, b"part-0"), (1, b"part-1")]
        proxy.lose_answer(b"\r\nfail\r\n")
        assert driven(table.resolve("id", VALUE, OWNER, failed=True))
        proxy.lose_answer(b"\r\nreopen\r\n")
        assert driven(table.reopen("id", 60.0, "orders/2"))
        assert proxy.lost == 5
        row = driven(table.get("id"))
        assert (row.state, row.owner, row.parts) == (ReplyState.PENDING, "orders/2", 2)


def test_a_first_attempt_that_arrives_after_its_repeat_emits_nothing(client: Any) -> None:
    table = table_of(client)
    started(table)
    calls = []
    call = table.client.call

    def noted(slot: int, made: Any, *rest: Any) -> Any:
        calls.append((slot, made))
        return call(slot, made, *rest)

    table.client.call = noted
    try:
        assert driven(table.emit("id", OWNER, "handle-1", [b"part"]))
        assert driven(call(*calls[0])).answer == 1
    finally:
        del table.client.call
    assert driven(table.get("id")).parts == 1


def test_a_full_server_refuses_parts_and_nothing_else(binary: Path) -> None:
    with (
        Standalone(binary, maxmemory="0", maxmemory_policy="noeviction") as server,
        server.client() as client,
        Box("box", client) as box,
    ):
        table = table_of(client)
        started(table)
        assert driven(table.create("other", 60.0, OWNER))
        waiting = box.send("waiting")
        leased = box.send("leased")
        assert box.receive()[0].body == "waiting"
        server.command("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(MailboxFullError, match="maxmemory"):
            driven(table.emit("id", OWNER, "handle-1", [b"part"]))
        again = driven(table.start("id", OWNER, JobStart("handle-2", "host", 2)))
        assert again.start.series == 2
        assert list(driven(table.parts("id", 0, 10))) == []
        assert driven(table.resolve("id", VALUE, OWNER, failed=True))
        assert driven(table.reopen("id", 60.0, OWNER))
        assert driven(table.cancel("other"))
        assert box.cancel(waiting)
        assert box.cancel(leased)


def test_parts_live_and_die_with_their_reply(client: Any, server: Standalone) -> None:
    table = table_of(client)
    started(table, keep=1000.0)
    driven(table.emit("id", OWNER, "handle-1", [b"part"]))
    entry, stream = key(server, "entry", "id"), key(server, "parts", "id")

    def lifetimes() -> list[int]:
        return [int(server.command("PEXPIRETIME", name)) for name in (entry, stream)]

    assert lifetimes()[0] == lifetimes()[1] > 0
    driven(table.resolve("id", VALUE, OWNER, failed=True))
    assert lifetimes()[0] == lifetimes()[1] > 0
    driven(table.reopen("id", 500.0, OWNER, 2000.0))
    assert lifetimes()[0] == lifetimes()[1] > 0
    driven(table.start("id", OWNER, FIRST))
    driven(table.emit("id", OWNER, "handle-1", [b"more"]))
    assert [row.number for row in driven(table.parts("id", 0, 10))] == [0, 1]
    driven(table.resolve("id", VALUE, OWNER))
    driven(table.consume("id"))
    assert list(driven(table.parts("id", 0, 10))) == []
    assert 0 < int(server.command("PTTL", stream)) <= 1000 or not server.command("EXISTS", stream)


def test_a_reply_that_nobody_reads_in_parts_has_no_stream(box: Box, server: Standalone) -> None:
    reply = box.send_expecting_reply("question", keep=100)
    (message,) = box.receive()
    assert driven(message._start()) is True
    message.reply("answer")
    assert reply.wait() == "answer"
    assert server.command("KEYS", "{replies:*}:parts:*") == []


def test_bytes_of_parts_are_bounded(client: Any, server: Standalone) -> None:
    table = table_of(client)
    started(table)
    part = b"p" * 60_000
    emitted = 0
    for _ in range(8):
        assert driven(table.emit("id", OWNER, "handle-1", [part] * 50))
        emitted += 50
    held = int(server.command("XLEN", key(server, "parts", "id")))
    assert held == MOST_PART_BYTES // len(part)
    assert int(server.command("HGET", key(server, "entry", "id"), "bytes")) == held * len(part)
    (oldest,) = driven(table.parts("id", 0, 1))
    assert oldest.number == emitted - held
    # Some at a time: who reads them all goes on where the answer ended.
    numbers: list[int] = []
    while rows := driven(table.parts("id", numbers[-1] + 1 if numbers else 0, 1000)):
        assert sum(len(row.payload) for row in rows) <= 2**20
        numbers += [row.number for row in rows]
    assert numbers == list(range(emitted - held, emitted))


def test_a_reader_waits_at_the_server(client: Any, server: Standalone) -> None:
    """It blocks on the stream, and wakes for a part, for the end and for a removal."""
    table = table_of(client)
    started(table)
    listener = table.listen("id")

    def listen(first: int) -> Any:
        return driven(listener.get_parts(first, 60.0))

    def blocked() -> None:
        eventually(lambda: server.info("clients")["blocked_clients"] == "1", 60, "a reader")

    server.command("CONFIG", "RESETSTAT")
    for number in range(3):
        waiting = background(listen, number)
        blocked()
        began = time.monotonic()
        driven(table.emit("id", OWNER, "handle-1", [b"part"]))
        _, rows = waiting.result(60)
        assert [row.number for row in rows] == [number]
        assert time.monotonic() - began < 4.0  # it would look by itself after five seconds
    waits = server.info("commandstats")["cmdstat_xread"].split(",")[0]
    assert int(waits.removeprefix("calls=")) <= 6
    for first, end in ((3, "fail"), (9, "reopen and delete")):
        if end != "fail":
            driven(table.reopen("id", 60.0, OWNER))
        waiting = background(listen, first)
        blocked()
        began = time.monotonic()
        if end == "fail":
            driven(table.resolve("id", VALUE, OWNER, failed=True))
            assert waiting.result(60)[0].state == ReplyState.FAILED
        else:
            driven(table.delete("id"))
            assert waiting.result(60)[0] is None
        assert time.monotonic() - began < 4.0


def test_a_reader_of_a_replayed_reply_does_not_spin(client: Any, server: Standalone) -> None:
    """The record of the first end is gone, or every wait would return at once."""
    table = table_of(client)
    started(table)
    driven(table.emit("id", OWNER, "handle-1", [b"part"]))
    listener = table.listen("id")
    for _ in range(2):
        driven(listener.get_parts(1, 0.0))
        driven(table.resolve("id", VALUE, OWNER, failed=True))
        driven(table.reopen("id", 60.0, OWNER))
    server.command("CONFIG", "RESETSTAT")
    row, rows = driven(listener.get_parts(1, 0.5))
    assert (row.state, rows) == (ReplyState.PENDING, [])
    waits = server.info("commandstats")["cmdstat_xread"].split(",")[0]
    assert int(waits.removeprefix("calls=")) <= 2


ANSWERS = (ReplyError, SerializationError)
"""What a caller can be told of such a reply; not that the server refuses something."""
BAD_FIELDS: dict[str, dict[str, str | bytes | None]] = {
    "no state": {"state": None},
    "a state that there is not": {"state": "sleeping"},
    "a state that is not text": {"state": b"\xff\xfe"},
    "no expiry": {"expires": None},
    "an expiry that is no number": {"expires": "soon"},
    "an expiry beyond all times": {"expires": "9" * 40},
    "no creation": {"created": None},
    "a creation that is no number": {"created": "-1e400"},
    "a settling time that is no number": {"state": "failed", "resolved": "x", "payload": VALUE},
    "a settling time beyond all times": {"state": "failed", "resolved": "9" * 14, "payload": VALUE},
    "no payload": {"state": "resolved"},
    "a payload that is no envelope": {"state": "resolved", "payload": b"\xff"},
    "an owner that is not text": {"owner": b"\xff\xfe"},
    "a keep that is no number": {"keep": "for ever"},
    "a ttl that is no number": {"ttl": "nan"},
    "a start without anything": {"handle": "h"},
    "a start that is not text": {"handle": b"\xff", "worker": b"\xff", "started": "9" * 14},
    "a start with no numbers": {"handle": "h", "deliveries": "x", "started": "", "series": "-"},
    "a number of parts that is none": {"parts": "many", "bytes": "much"},
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_a_malformed_entry_raises_nothing_raw(server: Standalone, box: Box, name: str) -> None:
    reply = box.send_expecting_reply("question")
    entry = key(server, "entry", reply.id)
    with server.client() as raw:
        for field, value in BAD_FIELDS[name].items():
            if value is None:
                raw.hdel(entry, field)
            else:
                raw.hset(entry, field, value)
    table = box._reply_table
    assert table is not None
    driven(table.get(reply.id))
    handle = box.reply(reply.id)
    (message,) = box.receive()
    for step in (
        reply.status,
        handle.status,
        reply.poll,
        reply.is_ready,
        lambda: list(handle.parts(timeout=0.05)),
        lambda: driven(message._start()),
        lambda: driven(message._emit([b'{"b":1}'])),
        lambda: list(handle.parts(timeout=0.05)),
        reply.status,
        lambda: message.reply("answer"),
        reply.status,
        lambda: reply.wait(timeout=0.05),
        reply.cancel,
    ):
        with suppress(*ANSWERS):
            step()


def test_an_index_beyond_all_parts(client: Any) -> None:
    table = table_of(client)
    started(table)
    driven(table.emit("id", OWNER, "handle-1", [b"part"]))
    assert list(driven(table.parts("id", 10**30, 10))) == []


def test_a_reply_whose_stream_is_of_another_type(server: Standalone, box: Box) -> None:
    reply = box.send_expecting_reply("question")
    (message,) = box.receive()
    assert driven(message._start()) is True
    server.command("SET", key(server, "parts", reply.id), "mine")
    assert driven(message._emit([b'{"b":1}'])) is True
    message.reply("answer")
    assert reply.wait(timeout=60) == "answer"


def test_a_reply_that_was_overwritten_keeps_no_other_from_its_caller(
    server: Standalone, box: Box
) -> None:
    broken, whole, _ = box.send_batch_expecting_replies(["a", "b", "next"])
    messages = box.receive(max_messages=2)
    server.command("SET", key(server, "entry", broken.id), "mine")
    carried = [message._carried_reply(message.body.upper()) for message in messages]
    (later,) = exchange_now(box, [], 1, 30, 0, carried)
    assert later.body == "next"
    assert whole.wait(timeout=60) == "B"
    assert box.stats().total == 1


def test_an_answer_whose_lease_has_ended_is_not_stored(box: Box) -> None:
    ended, held = box.send_batch_expecting_replies(["a", "b"])
    first, second = box.receive(max_messages=2)
    carried = [message._carried_reply(message.body.upper()) for message in (first, second)]
    driven(box.store.release([first.receipt_handle], 100, "failed"))
    assert exchange_now(box, [], 1, 30, 0, carried) == []
    assert (ended.poll(), held.wait(timeout=60)) == (None, "B")
    assert (first.is_finalized, second.is_finalized) == (False, True)


def test_answers_that_are_too_large_together_are_sent_apart(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weakincentives.contrib.mailbox.redis.store.MOST_SENT", 100)
    replies = box.send_batch_expecting_replies(["a", "b"])
    carried = [message._carried_reply("x" * 90) for message in box.receive(max_messages=2)]
    assert exchange_now(box, [], 1, 30, 0, carried) == []
    assert [reply.wait(timeout=60) for reply in replies] == ["x" * 90] * 2
    assert box.stats().total == 0


def test_a_server_that_was_restarted_is_told_of_starts(box: Box, server: Standalone) -> None:
    """It has lost its scripts, and a start that is sent without waiting would be lost with them."""
    posted = []
    for number in range(100):  # so that replies with every hash tag have been started
        box.send_expecting_reply(number)
        (message,) = box.receive()
        driven(message._start())
        posted.append(message._is_posted)
    assert any(posted)
    server.command("SCRIPT", "FLUSH")
    server.command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
    reply = box.send_expecting_reply("question")
    (message,) = box.receive()
    driven(message._start())
    eventually(lambda: reply.status().state == "running", 10)
