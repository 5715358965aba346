"""No operation costs more where there is much of anything: counted in work, not in time."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import apsw
import pytest
import redis

from chaos.many import KINDS, costs, fill
from tests.services import redis_url as redis_url
from weakincentives.contrib.mailbox.redis import RedisMailbox, RedisReplyStore
from weakincentives.contrib.mailbox.sqlite import SQLiteStore, due
from weakincentives.contrib.mailbox.sqlite import file as file_module
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.contrib.mailbox.sqlite.replies import SQLiteReplyTable
from weakincentives.runtime.mailbox import MailboxFullError
from weakincentives.runtime.mailbox.memory.replies import InMemoryReplyTable
from weakincentives.runtime.mailbox.memory.store import InMemoryStore
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

FEW, MANY = 200, 2000

# Counting takes longer where there is more to count; how long at most is measured in chaos.
COUNTS = {"stats"}


def assert_flat(few: dict[str, float], many: dict[str, float], slack: float) -> None:
    """Ten times as much of something may cost an operation a third more, and a little."""
    dear = {
        name: (few[name], cost)
        for name, cost in many.items()
        if name not in COUNTS and cost > few[name] * 4 / 3 + slack
    }
    assert not dear, f"work with {FEW} and with {MANY}: {dear}"


class Steps:
    """Counts what SQLite's machine does, on every connection that is opened."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, connection: apsw.Connection) -> apsw.Connection:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, self._note)
        return connection

    def _note(self, event: dict[str, Any]) -> None:
        self.count += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def cost(self, operation: Callable[[], object]) -> float:
        before = self.count
        operation()
        return self.count - before


@pytest.mark.parametrize("kind", KINDS)
def test_sqlite_takes_no_more_steps(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, open_connection = Steps(), file_module.open_connection
    monkeypatch.setattr(file_module, "open_connection", lambda *a: steps.watch(open_connection(*a)))
    # Thousands of leases are walked over before an index pays; here, tens.
    monkeypatch.setattr(due, "FEW", 10)
    monkeypatch.setattr(due, "MANY", 20)
    found = []
    for count in (FEW, MANY):
        file = open_database(tmp_path / f"{count}.db", "normal")
        store, replies = SQLiteStore(file, "jobs"), SQLiteReplyTable(file)
        fill(store, replies, kind, count)
        driven(store.lease(1, 3600))
        found.append(costs(store, replies, steps.cost))
        file.close()
    assert_flat(*found, slack=200)


@pytest.mark.parametrize("kind", ["delayed", "nacked", "leased"])
def test_sqlite_finds_room_without_counting_what_is_held(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, open_connection = Steps(), file_module.open_connection
    monkeypatch.setattr(file_module, "open_connection", lambda *a: steps.watch(open_connection(*a)))
    found = []
    for count in (FEW, MANY):
        file = open_database(tmp_path / f"{count}.db", "normal")
        store = SQLiteStore(file, "jobs", max_size=count + 10)
        fill(store, SQLiteReplyTable(file), kind, count)
        found.append({"send": steps.cost(partial(store.put_now, (Outgoing("one", b"x"),)))})
        with pytest.raises(MailboxFullError):
            store.put_now([Outgoing(f"more {number}", b"x") for number in range(10)])
        file.close()
    assert_flat(*found, slack=200)


def test_sqlite_sweeps_no_more_replies_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, open_connection = Steps(), file_module.open_connection
    monkeypatch.setattr(file_module, "open_connection", lambda *a: steps.watch(open_connection(*a)))
    found = []
    for count in (FEW, MANY):
        file = open_database(tmp_path / f"{count}.db", "normal")
        fill(SQLiteStore(file, "jobs"), SQLiteReplyTable(file), "unanswered", count)
        asking = SQLiteReplyTable(file).create("asked", 60)  # the first creation sweeps
        found.append({"ask": steps.cost(partial(driven, asking))})
        file.close()
    assert_flat(*found, slack=200)


class Lines:
    """Counts the lines of Python that an operation runs."""

    def __init__(self) -> None:
        self.count = 0

    def cost(self, operation: Callable[[], object]) -> float:
        before, former = self.count, sys.gettrace()
        sys.settrace(self._note)
        try:
            operation()
        finally:
            sys.settrace(former)
        return self.count - before

    def _note(self, frame: FrameType, event: str, argument: object) -> Any:
        self.count += event == "line"
        return self._note


@pytest.mark.parametrize("kind", KINDS)
def test_memory_runs_no_more_lines(kind: str) -> None:
    lines, found = Lines(), []
    for count in (FEW, MANY):
        store, replies = InMemoryStore("jobs"), InMemoryReplyTable()
        fill(store, replies, kind, count)
        driven(store.lease(1, 3600))
        found.append(costs(store, replies, lines.cost))
    assert_flat(*found, slack=50)


@pytest.mark.parametrize("kind", KINDS)
def test_redis_runs_no_more_commands(kind: str, redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)

    def cost(operation: Callable[[], object]) -> float:
        client.config_resetstat()
        operation()
        stats = client.info("commandstats")
        return float(sum(one["calls"] for name, one in stats.items() if "config" not in name))

    found = []
    for count in (FEW, MANY):
        client.flushall()
        box: RedisMailbox[Any, Any] = RedisMailbox(f"jobs{count}", client)
        replies = RedisReplyStore(client)._table
        fill(box.store, replies, kind, count)
        driven(box.store.lease(1, 3600))
        found.append(costs(box.store, replies, cost))
        box.close()
    client.close()
    assert_flat(*found, slack=5)
