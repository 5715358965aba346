"""What a message costs, in figures that do not depend on how fast the machine is."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from testkit import redis_clients as clients
from testkit.servers import Standalone
from testkit.threads import started_since, threads_now
from testkit.waiting import eventually
from weakincentives.contrib.mailbox.contract.driver import Driver, Face, Proxy, background
from weakincentives.contrib.mailbox.redis import RedisMailbox
from weakincentives.contrib.mailbox.redis.connection import ThreadTransport
from weakincentives.runtime import Job, Worker
from weakincentives.runtime.mailbox.testing import driven

Box = RedisMailbox[Any, Any]

BODY = {"key": "v" * 188}  # 200 bytes of JSON
LIVES = 500
ADMIN = ("config", "info", "hello", "client", "auth", "select", "command", "ping", "flushall")


def calls(server: Standalone) -> dict[str, int]:
    """Return how often each command ran, in scripts or not, without our own questions."""
    found = {}
    for key, value in server.info("commandstats").items():
        name = key.removeprefix("cmdstat_")
        if not name.startswith(ADMIN):
            found[name] = int(value.split(",")[0].removeprefix("calls="))
    return found


def round_trips(found: dict[str, int]) -> int:
    return found.get("evalsha", 0) + found.get("eval", 0)


@pytest.fixture
def warm(box: Box, server: Standalone) -> Box:
    """A mailbox whose connection is there and whose scripts are loaded."""
    box.send(0)
    box.exchange(box.receive())
    message = box.send(0) and box.receive()[0]
    message.acknowledge()
    server.command("CONFIG", "RESETSTAT")
    return box


def test_a_life_in_a_backlog(warm: Box, server: Standalone) -> None:
    for _ in range(LIVES + 1):
        warm.send(BODY)
    done: list[Any] = []
    for _ in range(LIVES):
        done = warm.exchange(done)
    found = calls(server)
    assert round_trips(found) / LIVES <= 2.1
    assert sum(found.values()) / LIVES <= 18


def test_a_life_of_single_steps(warm: Box, server: Standalone) -> None:
    for _ in range(LIVES):
        warm.send(BODY)
        warm.receive()[0].acknowledge()
    found = calls(server)
    assert round_trips(found) / LIVES == 3
    # One of them has the wake token expire, which is set anew whenever the queue was empty.
    assert sum(found.values()) / LIVES <= 19


def test_a_life_at_a_trickle(warm: Box, server: Standalone) -> None:
    """A consumer that waits for each message: send, wake up, acknowledge and look again."""
    lives = 50
    handled = threading.Semaphore(0)

    def serve() -> None:
        done: list[Any] = []
        for _ in range(lives):
            done = warm.exchange(done, wait_time_seconds=20)
            handled.release()

    consumer = threading.Thread(target=serve)
    consumer.start()
    for _ in range(lives):
        eventually(
            lambda: server.info("clients")["blocked_clients"] == "1", 60, "the consumer", interval=0
        )
        warm.send(BODY)
        assert handled.acquire(timeout=60)
    consumer.join()
    assert round_trips(calls(server)) / lives <= 3.1


def test_a_life_in_batches(warm: Box, server: Standalone) -> None:
    for _ in range(5):
        warm.send_batch([BODY] * 100)
    done: list[Any] = []
    for _ in range(6):
        done = warm.exchange(done, max_messages=100)
    assert round_trips(calls(server)) / 500 <= 0.05


def test_a_batch_of_requests_is_one_round_trip_per_thousand(warm: Box, server: Standalone) -> None:
    warm.send_expecting_reply(0)
    server.command("CONFIG", "RESETSTAT")
    replies = warm.send_batch_expecting_replies([BODY] * 1001)
    assert (round_trips(calls(server)), len(replies)) == (2, 1001)


def test_a_request_is_put_off_in_one_round_trip(warm: Box, server: Standalone) -> None:
    warm.send_batch_expecting_replies(["to load the script", "question"])
    first, second = warm.receive(max_messages=2)
    assert warm.release_batch([first], 500, "put_off") == [True]
    server.command("CONFIG", "RESETSTAT")
    assert warm.release_batch([second], 500, "put_off") == [True]
    assert round_trips(calls(server)) == 1


def test_bytes_for_each_message(box: Box, server: Standalone) -> None:
    def used() -> int:
        return int(server.info("memory")["used_memory"])

    box.send(0)
    before, count = used(), 100_000
    for _ in range(count // 1000):
        box.send_batch([BODY] * 1000)
    # The append-only file's buffer comes and goes.
    assert eventually(lambda: (used() - before) / count <= 380, 60, "at most 380 bytes each")


def test_an_idle_consumer_costs_two_commands_a_second(warm: Box, server: Standalone) -> None:
    warm.receive(wait_time_seconds=0.01)  # a token may be left from before
    server.command("CONFIG", "RESETSTAT")
    began = time.monotonic()
    assert warm.receive(wait_time_seconds=3) == []
    seconds = time.monotonic() - began
    found = calls(server)
    top_level = round_trips(found) + found["bzpopmin"]
    # The first look and the last come on top of those that the clock asks for, two commands each.
    assert top_level <= 2 * seconds + 4


def test_connections_and_threads(server: Standalone) -> None:
    with server.client() as client:
        before = int(server.info("clients")["connected_clients"])
        threads = threads_now()
        boxes = [Box(f"box-{number}", client) for number in range(50)]
        for box in boxes:
            box.send(1)
            reply = box.send_expecting_reply(2, reply_timeout=30)
            for message in box.receive(max_messages=2):
                if message.expects_reply():
                    message.reply(None)
                else:
                    message.acknowledge()
            assert reply.wait() is None
        assert not started_since(threads)
        assert int(server.info("clients")["connected_clients"]) - before <= 2
        for box in boxes:
            box.close()
        eventually(
            lambda: int(server.info("clients")["connected_clients"]) <= before,
            60,
            "the connections to be closed with the last mailbox",
        )


@pytest.mark.parametrize("face", ["sync", "async"])
def test_who_waits_while_the_last_mailbox_closes_keeps_no_connection(
    server: Standalone, face: Face
) -> None:
    """Ending a wait takes a connection of its own, which must not be kept for the next call."""
    driver = Driver(face)
    client = clients.standalone(server, awaited=face == "async")
    before = int(server.info("clients")["connected_clients"])
    box = Box("box", client)
    waiting = [background(Proxy(box, driver).receive, wait_time_seconds=300) for _ in range(4)]
    eventually(lambda: server.info("clients")["blocked_clients"] == "4", 60, "four consumers")
    driver.call(_closed, box)
    assert [each.result(120) for each in waiting] == [[]] * 4
    eventually(
        lambda: int(server.info("clients")["connected_clients"]) <= before,
        60,
        "the connections to be closed",
    )
    driver.close()


async def _closed(box: Box) -> None:
    box.close()


def test_a_question_costs_one_round_trip_and_its_answer_one(warm: Box, server: Standalone) -> None:
    warm.send_expecting_reply("to load the scripts")
    warm.receive()[0].reply(None)
    server.command("CONFIG", "RESETSTAT")
    replies = [warm.send_expecting_reply("question") for _ in range(LIVES)]
    assert round_trips(calls(server)) == LIVES
    for message in warm.receive(max_messages=LIVES):
        message.reply("answer")
    assert round_trips(calls(server)) == 2 * LIVES + 1
    assert {reply.wait() for reply in replies} == {"answer"}


def test_a_worker_does_not_wait_for_the_start_of_a_request(
    warm: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job is one round trip: its answer, the acknowledgement and the next receive."""
    waited = 0
    exchange = ThreadTransport.exchange

    async def counted(self: ThreadTransport, *arguments: Any) -> list[Any]:
        nonlocal waited
        waited += 1
        return await exchange(self, *arguments)

    replies = warm.send_batch_expecting_replies(["to load the script", *["question"] * 50])
    Worker(warm, str.upper).run(max_iterations=1, wait_time_seconds=0)
    monkeypatch.setattr(ThreadTransport, "exchange", counted)
    Worker(warm, str.upper).run(max_iterations=50, wait_time_seconds=0)
    assert 50 <= waited <= 50 + 16 + 2  # once for each of 16 tags, the start must find its server
    monkeypatch.undo()
    assert [reply.wait() for reply in replies[1:]] == ["QUESTION"] * 50


def test_the_start_of_a_request_is_seen_while_it_runs(warm: Box) -> None:
    """It is posted, so that it may be seen a moment later."""
    seen = []

    def handle(body: str, job: Job) -> str:
        reply = warm.reply(asked[body].id)
        eventually(lambda: reply.status().state == "running", 60, "the start", interval=0)
        seen.append((body, job.deadline is not None, job.emit(body)))
        return body

    asked = {body: warm.send_expecting_reply(body) for body in "abc"}
    Worker(warm, handle).run(max_iterations=3, wait_time_seconds=0)
    assert seen == [(body, True, True) for body in "abc"]
    assert [part.value for part in asked["c"].parts()] == ["c"]


def test_replies_leave_nothing_behind(box: Box, server: Standalone) -> None:
    for _ in range(20):
        reply = box.send_expecting_reply("question")
        box.receive()[0].reply(None)
        reply.wait()
    forgotten = [box.send_expecting_reply("never answered", reply_timeout=60) for _ in range(3)]
    assert forgotten[0].cancel()
    box.purge()
    for key in server.command("KEYS", "{replies:*"):
        if not key.endswith(":expiry"):
            # -2: it has expired since it was listed.
            assert server.command("PTTL", key) != -1, f"{key} stays for ever"
    eventually(
        lambda: len(server.command("KEYS", "{replies:*}:entry:*")) == 3,
        60,
        "the replies that were read to be gone",
        interval=0,
    )


def test_a_send_wakes_a_sleeping_consumer(client: Any, server: Standalone) -> None:
    # Looks come so rarely that a lost wake-up would take a minute; `make bench` has the figure.
    box: Box = Box("box", client, reaper_interval=60)
    times = []
    for _ in range(20):
        woken: list[float] = []

        def wait(woken: list[float] = woken) -> None:
            (message,) = box.receive(wait_time_seconds=60)
            woken.append(time.monotonic())
            message.acknowledge()

        consumer = threading.Thread(target=wait)
        consumer.start()
        eventually(
            lambda: server.info("clients")["blocked_clients"] == "1", 60, "the consumer", interval=0
        )
        began = time.monotonic()
        box.send("wake up")
        consumer.join()
        times.append(woken[0] - began)
    assert max(times) < 30


def test_many_waiters_are_woken_one_after_the_other(client: Any, server: Standalone) -> None:
    """Who finds more than it takes passes the token on: nobody waits for the next look."""
    box: Box = Box("box", client, reaper_interval=60)
    got: list[Any] = []
    consumers = [
        threading.Thread(target=lambda: got.extend(box.receive(wait_time_seconds=60)))
        for _ in range(8)
    ]
    for consumer in consumers:
        consumer.start()
    eventually(lambda: server.info("clients")["blocked_clients"] == "8", 60, "eight consumers")
    began = time.monotonic()
    box.send_batch(list(range(8)))
    for consumer in consumers:
        consumer.join(120)
    assert sorted(message.body for message in got) == list(range(8))
    assert time.monotonic() - began < 30


def test_a_million_queued_changes_nothing_much(binary: Path) -> None:
    """The scripts' own time: 100,000 here stand for a million in the benchmark."""

    def cost(server: Standalone, box: Box) -> float:
        server.command("CONFIG", "RESETSTAT")
        done: list[Any] = []
        for _ in range(300):
            box.send(BODY)
            done = box.exchange(done)
        stat = server.info("commandstats")["cmdstat_evalsha"]
        return float(stat.split("usec_per_call=")[1].split(",")[0])

    with Standalone(binary) as server, server.client() as client, Box("box", client) as box:
        cost(server, box)
        empty = min(cost(server, box) for _ in range(3))
        for _ in range(100):
            box.send_batch([BODY] * 1000)
        full = min(cost(server, box) for _ in range(3))
        assert full <= 10 * 1.5 * empty


def test_an_async_mailbox_starts_no_thread(server: Standalone) -> None:
    async def scenario() -> set[threading.Thread]:
        client = clients.standalone(server, awaited=True)
        box = Box("box", client)
        await box.send_async(1)
        (message,) = await box.receive_async(wait_time_seconds=1)
        await message.acknowledge_async()
        assert await box.receive_async(wait_time_seconds=0.1) == []
        box.close()
        await clients.close(client)
        return started_since(before)

    before = threads_now()
    assert asyncio.run(scenario()) == set()


def test_a_queue_that_can_be_paused_costs_no_round_trip(warm: Box, server: Standalone) -> None:
    """Whether it is paused is one key that the lease step itself looks for."""
    for _ in range(LIVES):
        warm.send(BODY)
    server.command("CONFIG", "RESETSTAT")
    for _ in range(LIVES):
        assert warm.receive()
    found = calls(server)
    assert round_trips(found) == LIVES
    assert found["exists"] == LIVES


def test_a_worker_is_listed_with_one_command(warm: Box, server: Standalone) -> None:
    table = warm.store.worker_table  # type: ignore[attr-defined]
    driven(table.write("me", b"{}", 60))
    server.command("CONFIG", "RESETSTAT")
    for _ in range(10):
        driven(table.write("me", b"{}", 60))
    assert round_trips(calls(server)) == 10
