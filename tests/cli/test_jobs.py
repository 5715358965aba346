"""``wink job``: what became of a job, by the id of its reply."""

import json
from pathlib import Path

import pytest

from weakincentives import connect
from weakincentives.cli.app import run
from weakincentives.runtime import Worker, WorkerConfig


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/test.db"


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()  # what a worker has logged before
    code = run(["job", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def fail(body: str) -> str:
    raise ValueError(f"no {body}")


def test_a_job_is_followed_to_its_end(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(url) as backend:
        box = backend.mailbox("jobs")
        reply = box.send_expecting_reply("tea", keep=600)
        code, out, err = shown(capsys, reply.id, "--url", url, "--json")
        found = json.loads(out)
        assert (code, err) == (0, "")
        assert (found["id"], found["state"], found["deliveries"]) == (reply.id, "queued", 0)
        assert found["message_id"] == reply.message_id
        Worker(box, str.upper).run(max_iterations=1)
        found = json.loads(shown(capsys, reply.id, "--url", url, "--json")[1])
        assert (found["state"], found["answer"]) == ("done", "TEA")
        _, out, _ = shown(capsys, reply.id, "--url", url)
        assert "state        done" in out
        assert "answer       TEA" in out


def test_a_failure_is_shown(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(url) as backend:
        box = backend.mailbox("jobs")
        reply = box.send_expecting_reply("tea\x1b[31m", keep=600)
        Worker(box, fail, config=WorkerConfig(error_detail="text")).run(max_iterations=1)
        found = json.loads(shown(capsys, reply.id, "--url", url, "--json")[1])
        assert found["state"] == "failed"
        assert found["error_type"].endswith("ValueError")
        assert found["reference"]
        assert "\x1b" not in shown(capsys, reply.id, "--url", url)[1]


def test_a_failure_with_a_value_is_shown_with_both(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(url) as backend:
        box = backend.mailbox("jobs")
        reply = box.send_expecting_reply("tea", keep=600)
        Worker(box, fail, error_reply=lambda failure: "sorry").run(max_iterations=1)
        found = json.loads(shown(capsys, reply.id, "--url", url, "--json")[1])
    assert (found["state"], found["answer"]) == ("failed", "sorry")
    assert found["error_type"].endswith("ValueError")
    assert found["reference"]


def test_a_job_is_cancelled(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(url) as backend:
        box = backend.mailbox("jobs")
        reply = box.send_expecting_reply("tea")
        code, out, _ = shown(capsys, reply.id, "--cancel", "--url", url, "--json")
        assert (code, json.loads(out)["state"], json.loads(out)["cancelled"]) == (
            *(0, "cancelled"),
            True,
        )
        assert box.receive() == []
        code, _, err = shown(capsys, reply.id, "--cancel", "--url", url)
        assert "nothing was cancelled" in err


@pytest.mark.parametrize("id", ["-cRm1j-x8", "--jsoz", "-h8"])
def test_an_id_may_begin_with_a_hyphen(
    id: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with connect(url) as backend:
        backend.mailbox("jobs").send("tea")
    code, _, err = shown(capsys, id, "--url", url)
    assert code == 1
    assert f"there is no reply {id!r}" in err


def test_an_unknown_job_is_one_line(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with connect(url) as backend:
        backend.mailbox("jobs").send(1)
    code, out, err = shown(capsys, "nobody", "--url", url)
    assert (code, out) == (1, "")
    assert "there is no reply 'nobody'" in err
    code, _, err = shown(capsys, "a b", "--url", url)
    assert code == 2
    assert "id must be" in err
