"""``wink workers``: who serves the queues, and what they hold."""

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.cli.app import run
from weakincentives.runtime import HeldMessage, LoopInfo, Worker, WorkerInfo


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/test.db"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(["workers", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_workers_are_listed_with_what_they_hold(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    released = threading.Event()
    with connect(url) as backend:
        box = backend.mailbox("orders")
        id = box.send("tea")
        assert shown(capsys, "--url", url) == (0, "No worker serves the queues here.\n", "")
        assert shown(capsys, "--url", url, "--json") == (0, "", "")
        worker = Worker(box, lambda body: released.wait())
        serving = threading.Thread(target=worker.run)
        serving.start()
        eventually(lambda: any(one.held for one in backend.workers()))
        code, out, err = shown(capsys, "--url", url, "--json")
        found = json.loads(out)
        assert (code, err, found["pid"]) == (0, "", os.getpid())
        assert found["loops"][0]["mailbox"] == "orders"
        assert found["oldest_held"][0]["message_id"] == id
        code, out, _ = shown(capsys, "--url", url)
        assert (code, "orders (1)" in out, id in out) == (0, True, True)
        released.set()
        worker.shutdown()
        serving.join()
        assert shown(capsys, "--url", url)[1] == "No worker serves the queues here.\n"


def test_what_is_not_known_of_a_lease_is_not_said(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def entry(name: str, seen: float, left: float) -> WorkerInfo:
        held = HeldMessage("orders", f"m-{name}", 1, 60.0, left)
        loop = LoopInfo("orders", 1, 1)
        return WorkerInfo(name, name, 1, "1", datetime.now(UTC), (loop,), 1, (held,), seen)

    with connect(url) as backend:
        backend.mailbox("orders").send("tea")
        entries = [entry("alive", 4.9, -3.0), entry("late", 2.0, -5.0), entry("dead", 15.0, -3.0)]
        monkeypatch.setattr(type(backend), "workers", lambda self: entries)
    rows = shown(capsys, "--url", url)[1].splitlines()
    (alive, late, dead) = (
        next(row for row in rows if f"m-{name}" in row) for name in ("alive", "late", "dead")
    )
    assert "over" not in alive, "the worker may have extended it since its last sign"
    assert "over" in late
    assert "over" in dead
    assert sum("silent" in row for row in rows) == 1


def test_a_backend_that_cannot_list_workers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("boto3")
    code, out, err = shown(capsys, "--url", "sqs://eu-west-1")
    assert (code, out) == (1, "")
    assert "cannot list its workers" in err
