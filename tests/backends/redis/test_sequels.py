"""Answers and dead letters of a message that comes again, hours after its worker died."""

import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from testkit.servers import Standalone
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.ids import SequelId
from weakincentives.runtime import DLQPolicy, Worker, replay_dead_letters
from weakincentives.runtime.mailbox import MailboxError
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]

FIVE_MINUTES, TWO_WEEKS = 300_000, 14 * 86_400_000
A_WORKER = """
    import os, sys
    from weakincentives import connect
    from weakincentives.runtime import DLQPolicy, InProcessDispatcher, Worker, WorkerConfig
    from weakincentives.runtime.events import MessageDeadLettered
    from weakincentives.runtime.mailbox.events import MessageReplied, MessageSent

    url, how = sys.argv[1:]
    backend, events = connect(url), InProcessDispatcher()
    # The answer is out, the acknowledgement is not.
    for event in (MessageReplied, MessageDeadLettered):
        events.subscribe(event, lambda event: os._exit(7))

    def handle(body):
        if how == "dead letter":
            raise ValueError("poison")
        return "of the first worker"

    from weakincentives.contrib.mailbox.redis import RedisMailbox
    box = RedisMailbox("box", backend._client, dispatcher=events)
    Worker(
        box, handle, dlq=DLQPolicy(backend.mailbox("dead"), max_delivery_count=1),
        config=WorkerConfig(dispatcher=events),
    ).run(max_iterations=2, visibility_timeout=60, wait_time_seconds=0)
"""


def die_after(server: Standalone, how: str) -> None:
    """Have a worker killed between what a message leads to and its acknowledgement."""
    code = textwrap.dedent(A_WORKER)
    died = subprocess.run([sys.executable, "-c", code, server.url, how], timeout=120, check=False)
    assert died.returncode == 7


def let_hours_pass(server: Standalone, hours: int = 24) -> None:
    """Make every time in the keys so much older: leases run out, ids are forgotten."""
    with server.client() as raw:
        for key in raw.keys("{queue:*"):
            if raw.type(key) == b"zset":
                for member, score in raw.zrange(key, 0, -1, withscores=True):
                    raw.zadd(key, {member: score - hours * 3_600_000})
            left = raw.pttl(key)
            if left > 0:
                raw.pexpire(key, max(left - hours * 3_600_000, 1))


def known_for(server: Standalone, queue: str) -> list[int]:
    """Return for how many milliseconds each id is still known, and the key itself."""
    seconds, micros = server.command("TIME")
    now = int(seconds) * 1000 + int(micros) // 1000
    key = f"{{queue:{queue}}}:sent"
    scores = server.command("ZRANGE", key, 0, -1, "WITHSCORES")[1::2]
    return [int(score) + FIVE_MINUTES - now for score in scores] + [server.command("PTTL", key)]


def test_a_worker_that_dies_after_its_answer_answers_once(server: Standalone, box: Box) -> None:
    with server.client() as client, Box("replies", client) as replies:
        box.send("question", reply_to=replies)
        die_after(server, "answer")
        (first,) = replies.receive()
        assert first.body == "of the first worker"
        first.acknowledge()
        let_hours_pass(server)
        assert min(known_for(server, "replies")) > FIVE_MINUTES
        Worker(box, lambda body: "of the second worker").run(max_iterations=2, wait_time_seconds=0)
        assert box.approximate_count() == 0
        assert replies.receive() == []
        assert max(known_for(server, "replies")) <= FIVE_MINUTES


def test_a_worker_that_dies_after_a_dead_letter_writes_one(server: Standalone, box: Box) -> None:
    with server.client() as client, Box("dead", client) as letters:
        box.send("poison")
        die_after(server, "dead letter")
        (letter,) = letters.receive()
        letter.acknowledge()
        let_hours_pass(server)

        def fail(body: str) -> None:
            raise ValueError(body)

        worker: Worker[Any, Any] = Worker(box, fail, dlq=DLQPolicy(letters, max_delivery_count=1))
        worker.run(max_iterations=2, wait_time_seconds=0)
        assert box.approximate_count() == 0
        assert letters.receive() == []
        assert max(known_for(server, "dead")) <= FIVE_MINUTES


def test_a_replay_that_was_cut_off_sends_one(server: Standalone, box: Box) -> None:
    with server.client() as client, Box("dead", client) as letters:

        def fail(body: str) -> None:
            raise ValueError(body)

        box.send("poison")
        worker: Worker[Any, Any] = Worker(box, fail, dlq=DLQPolicy(letters, max_delivery_count=1))
        worker.run(max_iterations=2, wait_time_seconds=0)
        acknowledge = letters._plain.acknowledge_now
        letters._plain.acknowledge_now = lambda handles: sys.exit("killed")
        with pytest.raises(SystemExit):
            replay_dead_letters(letters, box)
        (message,) = box.receive()
        message.acknowledge()
        let_hours_pass(server)
        letters._plain.acknowledge_now = acknowledge
        assert replay_dead_letters(letters, box) == 1
        assert box.receive() == []
        assert max(known_for(server, "box")) <= FIVE_MINUTES


def test_answers_do_not_pile_up(server: Standalone, box: Box) -> None:
    """However many answers there are, in however many queues, each is soon forgotten."""
    with server.client() as client:
        queues = [Box(f"replies-{number % 20}", client) for number in range(200)]
        for number, queue in enumerate(queues):
            box.send(number, reply_to=queue)
        box.send("no answer is wanted")
        server.command("CONFIG", "RESETSTAT")
        Worker(box, str).run(max_iterations=201, wait_time_seconds=0)
        for queue in queues[:20]:
            assert len(queue.receive(max_messages=100)) == 10
            assert max(known_for(server, queue.name)) <= FIVE_MINUTES
        posts = server.info("commandstats")["cmdstat_eval"].split(",")[0]
        # Gathered for a second at a time, and this may take several on a busy machine.
        assert int(posts.removeprefix("calls=")) < 200


def test_chosen_ids_are_known_for_five_minutes_beside_others(box: Box, server: Standalone) -> None:
    box.send(1, message_id=SequelId("long"))
    box.send(2, message_id="short")
    box.send(3, message_id=SequelId("long-too"))
    box.purge()
    box.send(1, message_id=SequelId("long"))
    box.send(2, message_id="short")
    short, long, key = known_for(server, "box")
    assert short <= FIVE_MINUTES < long <= TWO_WEEKS
    assert long - 1000 <= key <= TWO_WEEKS
    driven(box.store.forget_soon(["long"]))
    box.stats()
    assert max(known_for(server, "box")) <= FIVE_MINUTES
    box.send(3, message_id=SequelId("long"))
    assert box.approximate_count() == 2


def test_forgetting_waits_for_no_server_that_is_gone(binary: Path) -> None:
    with Standalone(binary) as server, server.client() as client, Box("box", client) as box:
        box.send(1, message_id=SequelId("long"))
        server.kill()
        began = time.monotonic()
        for _ in range(3):
            with suppress(MailboxError):
                driven(box.store.forget_soon(["long"]))
        assert time.monotonic() - began < 10


def test_very_many_ids_are_forgotten_some_at_a_time(server: Standalone, box: Box) -> None:
    with server.client() as raw:
        raw.zadd("{queue:box}:sent", {f"old-{number}": number for number in range(3000)})
    for left in (2000, 1000, 0):
        box.send("new", message_id=f"new-{left}")
        old = server.command("ZCOUNT", "{queue:box}:sent", "-inf", "3000")
        assert old == left
