"""``wink workers``: who serves the queues, and what they hold."""

import json
import os
import threading
from pathlib import Path

import pytest

from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.cli.app import run
from weakincentives.runtime import Worker


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


def test_a_backend_that_cannot_list_workers_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("boto3")
    code, out, err = shown(capsys, "--url", "sqs://eu-west-1")
    assert (code, out) == (1, "")
    assert "cannot list its workers" in err
