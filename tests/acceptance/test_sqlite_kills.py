"""SIGKILL at any moment: nothing that was sent is lost, nothing is in two places."""

import os
import random
import select
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite.registry import open_database

pytestmark = pytest.mark.slow

LEASE = 0.3
Report = Callable[[str, str], None]

if not hasattr(os, "fork"):
    pytest.skip("kills forked children", allow_module_level=True)


def start(work: Callable[[Report], None]) -> tuple[int, int]:
    """Fork a child that reports each step through a pipe; return its pid and the pipe."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)

            def report(verb: str, id: str) -> None:
                os.write(writing, f"{verb} {id}\n".encode())

            work(report)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def kill(pid: int, pipe: int) -> list[tuple[str, str]]:
    """Kill a child; return what it had reported by then."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with os.fdopen(pipe, "rb") as file:
        lines = file.read().decode().splitlines()
    return [(verb, id) for verb, id in (line.split() for line in lines)]


def write(path: Path, durability: str, chance: random.Random) -> Callable[[Report], None]:
    def work(report: Report) -> None:
        box = SQLiteMailbox[int]("jobs", path, durability=durability)
        while True:
            action = chance.random()
            if action < 0.6:
                report("sent", box.send(1))
            elif action < 0.8:
                for id in box.send_batch([1] * 20):
                    report("sent", id)
            else:
                report("sent", box.send(1, delay_seconds=chance.random() / 10))

    return work


def consume(path: Path, durability: str, chance: random.Random) -> Callable[[Report], None]:
    def work(report: Report) -> None:
        box = SQLiteMailbox[int]("jobs", path, durability=durability)
        while True:
            for message in box.receive(
                max_messages=chance.randrange(1, 8), visibility_timeout=LEASE, wait_time_seconds=5
            ):
                try:
                    if chance.random() < 0.2:
                        message.nack(visibility_timeout=chance.random() / 20)
                    else:
                        report("trying", message.id)
                        message.acknowledge()
                        report("done", message.id)
                except Exception:
                    report("lost", message.id)

    return work


def carnage(path: Path, durability: str, seed: int, kills: int) -> None:
    chance = random.Random(seed)
    sent: set[str] = set()
    tried: set[str] = set()
    done: set[str] = set()
    kinds = [write, consume, consume]
    running = [
        (kind, start(kind(path, durability, random.Random(chance.random())))) for kind in kinds
    ]
    for _ in range(kills):
        time.sleep(chance.random() / 15)
        kind, child = running.pop(chance.randrange(len(running)))
        for verb, id in kill(*child):
            {"sent": sent, "trying": tried, "done": done}.get(verb, set()).add(id)
        running.append((kind, start(kind(path, durability, random.Random(chance.random())))))
    for _, child in running:
        for verb, id in kill(*child):
            {"sent": sent, "trying": tried, "done": done}.get(verb, set()).add(id)
    database = open_database(path)
    assert database.read("PRAGMA integrity_check") == [("ok",)]
    rows = database.read("SELECT id FROM waiting UNION ALL SELECT id FROM held")
    there = [id for (id,) in rows]
    database.close()
    assert len(there) == len(set(there)), "a message is in two places"
    assert not done & set(there), "an acknowledged message is still there"
    assert sent - tried <= set(there), "a message was lost"
    assert len(sent) > kills
    assert done


def test_twenty_kills(tmp_path: Path) -> None:
    carnage(tmp_path / "box.db", "normal", seed=1, kills=20)


@pytest.mark.full
@pytest.mark.parametrize("durability", ["full", "normal"])
def test_two_hundred_kills(tmp_path: Path, durability: str) -> None:
    carnage(tmp_path / "box.db", durability, seed=2, kills=200)


@pytest.mark.parametrize("lease", [0.2, 1.0])
def test_what_a_killed_consumer_held_comes_back_in_time(tmp_path: Path, lease: float) -> None:
    path = tmp_path / "box.db"
    box = SQLiteMailbox[int]("jobs", path)
    box.send(7)

    def hold(report: Report) -> None:
        (message,) = SQLiteMailbox[int]("jobs", path).receive(visibility_timeout=lease)
        report("holding", message.id)
        signal.pause()

    pid, pipe = start(hold)
    assert select.select([pipe], [], [], 30)[0]
    began = time.monotonic()
    kill(pid, pipe)
    (message,) = box.receive(wait_time_seconds=30)
    assert message.delivery_count == 2
    assert time.monotonic() - began < 10 * (lease + 1)
    assert message.acknowledge()
