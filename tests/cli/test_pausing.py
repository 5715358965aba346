"""``wink pause`` and ``wink resume``, and where a pause is shown."""

import json
from pathlib import Path

import pytest

from weakincentives import connect
from weakincentives.cli.app import run


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/test.db"
    with connect(url) as backend:
        backend.mailbox("orders").send("tea")
    return url


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = run(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_queue_is_paused_and_resumed(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    _, before, _ = shown(capsys, "queues", "--url", url)
    assert "paused" not in before
    because = ("--because", "the bank is down\x1b[31m")
    code, out, err = shown(capsys, "pause", "orders", *because, "--url", url)
    assert (code, out, err) == (0, "paused orders; wink resume orders ends this\n", "")
    received = shown(capsys, "receive", "orders", "--url", url)[1]
    assert received == "Nothing to receive in orders: it is paused; 1 pending.\n"
    for command in ("queues", "stats"):
        _, out, _ = shown(capsys, command, "--url", url)
        assert "paused" in out
        assert "\x1b" not in out
        found = json.loads(shown(capsys, command, "--json", "--url", url)[1])
        assert found["paused"]["because"] == because[1]
        assert "@" in found["paused"]["by"]
        assert found["paused"]["at"].endswith("Z"), "as every other time in JSON"
    assert shown(capsys, "resume", "orders", "--url", url)[1] == "resumed orders\n"
    assert shown(capsys, "resume", "orders", "--url", url)[1] == "orders was not paused\n"
    assert "paused" not in shown(capsys, "queues", "--json", "--url", url)[1]


def test_json_and_queues_that_do_not_exist_yet(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = shown(capsys, "pause", "later", "--json", "--url", url)
    assert (code, err) == (0, "wink: there is no queue 'later' here\n"), "it may be a typo"
    found = json.loads(out)
    assert (found["queue"], found["because"]) == ("later", None)
    listed = shown(capsys, "queues", "--json", "--url", url)[1].splitlines()
    assert [json.loads(line)["queue"] for line in listed] == ["later", "orders"]
    assert json.loads(shown(capsys, "resume", "later", "--json", "--url", url)[1]) == {
        "queue": "later",
        "resumed": True,
    }


def test_a_wrong_name_and_a_backend_that_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, "pause", "a/b?", "--url", "memory://")[0] == 2
    pytest.importorskip("boto3")
    code, out, err = shown(capsys, "pause", "orders", "--url", "sqs://eu-west-1")
    assert (code, out) == (1, "")
    assert "cannot pause queues" in err
