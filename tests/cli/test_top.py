"""``wink top`` and ``wink tail`` show what happens; the shell completes names of queues."""

import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import weakincentives
from testkit.waiting import eventually
from tests.cli.wink import Wink
from tests.services import redis_url
from weakincentives.cli import completion, top
from weakincentives.cli.app import run
from weakincentives.cli.queue_history import QueueHistory, sparkline
from weakincentives.cli.tail import Follower
from weakincentives.runtime.mailbox import MailboxStats
from weakincentives.runtime.mailbox.seam.backend import Backend

__all__ = ["redis_url"]

COMMAND = [sys.executable, "-m", "weakincentives.cli"]


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
def wink(url: str, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(url, capsys)


# --- top ------------------------------------------------------------------------------------


def sent_at(*times: float) -> list[Any]:
    return [SimpleNamespace(enqueued_at=datetime.fromtimestamp(time, UTC)) for time in times]


def test_rates_come_from_depths_and_the_newest_messages() -> None:
    history = QueueHistory()
    history.add(0.0, MailboxStats(10, 0, 0, 1.0), sent_at(100, 101))
    assert history.trend() == (None, None, None, None)
    history.add(2.0, MailboxStats(6, 0, 0, 1.0), sent_at(101, 102, 103))
    assert history.trend() == (-2.0, 1.0, 3.0, 3.0)
    history.add(4.0, MailboxStats(6, 2, 0, 1.0), [])
    growth, incoming, outgoing, drained_in = history.trend()
    assert (growth, incoming, outgoing) == (-0.5, 0.5, 1.0)
    assert drained_in == 16.0


def test_rates_are_unknown_where_nothing_can_be_peeked_at() -> None:
    history = QueueHistory()
    history.add(0.0, MailboxStats(1, 0, 0, 1.0), None)
    history.add(1.0, MailboxStats(5, 0, 0, 1.0), None)
    assert history.trend() == (4.0, None, None, None)


def test_a_sparkline_shows_the_shape() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 1, 50, 100]) == "▁▂▅█"
    assert len(sparkline(list(range(100)), 20)) == 20


def test_top_shows_queues_once(wink: Wink, backend: Backend) -> None:
    backend.mailbox("few").send(1)
    backend.mailbox("many").send_batch([1, 2, 3])
    shown = wink.json("top", "--once", "--interval", "0.05", "--sort", "pending")
    assert [(row["queue"], row["pending"]) for row in shown] == [("many", 3), ("few", 1)]
    assert shown[0]["depths"] == [3, 3]
    assert shown[0]["in_per_second"] == shown[0]["out_per_second"] == 0
    assert [row["queue"] for row in wink.json("top", "few", "--once", "--interval", "0.05")] == [
        "few"
    ]
    assert "many" in wink.ok("top", "--once", "--interval", "0.05")
    assert wink("top", "--interval", "0")[0] == 2


def test_top_shows_which_queues_are_paused_and_breaks_no_name_in_80_columns(
    wink: Wink, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    backend.mailbox("payments-letters").send(1)
    backend.pause("payments-letters")
    try:
        once = ("top", "payments-letters", "--once", "--interval", "0.05")
        (facts,) = wink.json(*once)
        assert facts["paused"] is True
        (row,) = (line for line in wink.ok(*once).splitlines() if "payments-letters" in line)
        assert "paused" in row
    finally:
        backend.resume("payments-letters")


def test_a_refresh_takes_turns_among_many_queues(
    wink: Wink, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(5):
        backend.mailbox(f"q{n}").send(1)
    monkeypatch.setattr(top, "SHOWN", 1)
    monkeypatch.setattr(top, "SHORTEST_INTERVAL", 0.0)
    watch = top.QueueWatch(backend, None, top.SortBy.NAME)
    watch.look(0.0)  # there is no time for any
    assert watch.unread == 5
    watch.look(3600.0)
    assert (watch.unread, watch.hidden, watch.shown()) == (0, 4, ["q0"])
    backend.mailbox("q0").purge()


def test_top_is_live_on_a_terminal_and_q_quits(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    with weakincentives.connect(url) as backend:
        backend.mailbox("orders").send(1)
    ours, theirs = pty.openpty()
    arguments = ["top", "--interval", "0.1", "--url", url]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [*COMMAND, *arguments], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = bytearray()

    def read() -> None:
        try:
            while chunk := os.read(ours, 4096):
                shown.extend(chunk)
        except OSError:
            pass  # the terminal is closed

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    try:
        eventually(lambda: b"trouble" in shown)
        os.write(ours, b"s")
        eventually(lambda: b"Queues by name" in shown)
        os.write(ours, b"q")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        reader.join(60)
        os.close(ours)
    assert b"orders" in shown


# --- tail -----------------------------------------------------------------------------------


def events(follower: Follower) -> list[tuple[str, Any]]:
    found = []
    for event in follower.look():
        message = event.get("message")
        found.append((event["event"], event.get("id") if message is None else message.body))
    return found


def test_a_follower_sees_what_comes_and_goes_and_leases_nothing(backend: Backend) -> None:
    box: Any = backend.mailbox("orders")
    first = box.send("old")
    follower = Follower(box)
    assert events(follower) == []
    assert events(follower) == []
    box.send("new")
    assert events(follower) == [("arrived", "new"), ("counts", None)]
    (message,) = box.receive()
    assert events(follower) == [("left", first), ("counts", None)]
    message.nack()
    assert events(follower) == [("returned", "old"), ("counts", None)]
    box.send_batch([str(n) for n in range(150)])
    kinds = [kind for kind, _ in events(follower)]
    assert (kinds[0], kinds.count("arrived"), kinds[-1]) == ("missed", 100, "counts")
    box.send("last")
    assert events(follower) == [("arrived", "last"), ("counts", None)]
    assert box.stats().in_flight == 0


def test_tail_prints_events(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'test.db'}"
    with weakincentives.connect(url) as backend:
        box = backend.mailbox("orders")
        box.send("before")
        arguments = ["tail", "orders", "--interval", "0.05", "--json", "--url", url]
        process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            lines: list[str] = []
            reader = threading.Thread(target=lambda: lines.extend(process.stdout or ()))
            reader.start()
            # It looks for the first time at some moment: only later messages are news.
            eventually(lambda: box.send("news") and lines)
            assert json.loads(lines[0])["event"] == "arrived"
            assert json.loads(lines[0])["body"] == "news"
        finally:
            process.kill()
            process.wait()
            reader.join(60)
            process.stdout.close()


def test_tail_ends_in_time(wink: Wink, backend: Backend) -> None:
    backend.mailbox("orders").send(1)
    assert wink.ok("tail", "orders", "--interval", "0.05", "--for", "0.1") == ""
    assert wink("tail", "orders", "--interval", "0")[0] == 2


# --- completion -----------------------------------------------------------------------------


def completed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: str, last: str
) -> list[str]:
    monkeypatch.setenv("_WINK_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"{words} {last}")
    monkeypatch.setenv("COMP_CWORD", str(len(words.split())))
    run([])
    return capsys.readouterr().out.split()


def test_a_shell_completes_commands_and_queues(
    url: str,
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(completion, "PATIENCE", 60.0)
    for name in ("orders", "orders-dlq", "other"):
        backend.mailbox(name).send(1)
    assert completed(monkeypatch, capsys, "wink", "do") == ["doctor"]
    assert completed(monkeypatch, capsys, f"wink peek --url {url}", "ord") == [
        "orders",
        "orders-dlq",
    ]
    monkeypatch.setenv("WINK_URL", url)
    assert completed(monkeypatch, capsys, "wink dlq list", "orders-") == ["orders-dlq"]
    monkeypatch.setenv("WINK_URL", "sqlite:////nowhere/none.db")
    assert completed(monkeypatch, capsys, "wink peek", "o") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(
    shell: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("_WINK_COMPLETE", f"source_{shell}")
    assert run([]) == 0
    assert "_WINK_COMPLETE" in capsys.readouterr().out
