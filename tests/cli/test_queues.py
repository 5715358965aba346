"""``wink`` on a real file, run as a user runs it."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.wink import Wink
from tests.services import redis_url
from weakincentives.cli.app import run

__all__ = ["redis_url"]


def _typed(text: str = "") -> io.TextIOWrapper:
    """Return a standard input that has been given this."""
    return io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")


@pytest.fixture
def wink(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Wink:
    return Wink(f"sqlite:///{tmp_path / 'test.db'}", capsys)


def test_a_message_is_sent_seen_received_and_removed(wink: Wink) -> None:
    (sent,) = wink.json("send", "orders", '{"item": "tea"}', "--attribute", "trace=7")
    (seen,) = wink.json("peek", "orders")
    assert seen["id"] == sent["id"]
    assert seen["body"] == {"item": "tea"}
    assert seen["attributes"] == {"trace": "7"}
    assert seen["delivery_count"] == 0
    (received,) = wink.json("receive", "orders", "--ack")
    assert received["id"] == sent["id"]
    assert received["delivery_count"] == 1
    (counted,) = wink.json("stats", "orders")
    assert counted["pending"] == counted["in_flight"] == counted["delayed"] == 0


def test_without_ack_a_message_comes_back(wink: Wink) -> None:
    wink.ok("send", "orders", "1")
    wink.ok("receive", "orders", "--visibility", "0")
    (again,) = wink.json("receive", "orders")
    assert again["delivery_count"] == 2
    assert wink.json("receive", "orders") == []


def test_a_queue_with_nothing_to_show_says_where_its_messages_are(wink: Wink) -> None:
    for body in ("1", "2"):
        wink.ok("send", "orders", body)
    wink.ok("send", "orders", "3", "--delay", "60")
    wink.ok("receive", "orders", "--max", "2")
    where = "orders: 2 in flight, 1 delayed.\n"
    assert wink.ok("peek", "orders") == f"No messages are pending in {where}"
    assert wink.ok("receive", "orders") == f"Nothing to receive in {where}"
    wink.ok("purge", "orders", "--yes")
    assert wink.ok("peek", "orders") == "No messages are pending in orders.\n"


def test_queues_and_stats_show_every_queue(wink: Wink) -> None:
    wink.ok("send", "b", "1")
    wink.ok("send", "a", "1", "--delay", "60")
    assert [row["queue"] for row in wink.json("queues")] == ["a", "b"]
    assert [(row["pending"], row["delayed"]) for row in wink.json("stats")] == [(0, 1), (1, 0)]
    shown = wink.ok("stats")
    assert "pending" in shown
    assert "a" in shown


def test_stdin_is_one_document_or_one_a_line(wink: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_stdin(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", _typed(text))

    with_stdin('{\n  "a": 1\n}\n')
    assert len(wink.json("send", "q", "-")) == 1
    with_stdin("1\n\n2\n3\n")
    assert len(wink.json("send", "q", "-")) == 3
    with_stdin("1\nnot json\n")
    code, _, err = wink("send", "q", "-")
    assert code == 2
    assert "line 2 of stdin is not JSON" in err
    bodies = [row["body"] for row in wink.json("receive", "q", "--max", "10")]
    assert bodies == [{"a": 1}, 1, 2, 3]


def test_a_line_ends_where_json_says_so(wink: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", _typed('"one\u2028line"\r\n"another\x85line"\n'))
    wink.ok("send", "orders", "-")
    received = wink.json("receive", "orders", "--max", "9")
    assert [message["body"] for message in received] == ["one\u2028line", "another\x85line"]


@pytest.mark.parametrize("bad", ["NaN", "1e999", '"\\ud800"', "[" * 500 + "]" * 500])
def test_what_python_reads_and_json_has_not_is_bad_input(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    wink.ok("send", "orders", "0")
    code, out, err = wink("send", "orders", bad)
    assert (code, out) == (2, "")
    assert err.startswith("wink: the body cannot be sent: ")
    monkeypatch.setattr(sys, "stdin", _typed(f"1\n2\n{bad}\n"))
    code, out, err = wink("send", "orders", "-")
    assert (code, out) == (2, "")
    assert err.startswith("wink: line 3 of stdin cannot be sent: ")
    assert wink.json("stats", "orders")[0]["pending"] == 1


def test_what_was_sent_before_a_failure_is_said(
    wink: Wink, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = json.dumps("x" * 2_000_000)
    code, out, err = wink("send", "orders", large)
    assert (code, out) == (2, "")
    monkeypatch.setattr(sys, "stdin", _typed(f"1\n{large}\n3\n"))
    code, out, err = wink("send", "orders", "-", "--json")
    assert code == 1
    assert err.startswith("wink: message 2 of stdin: nothing was sent: ")
    (seen,) = wink.json("peek", "orders")
    assert json.loads(out) == {"id": seen["id"]}


def test_an_id_makes_a_send_idempotent(wink: Wink) -> None:
    for _ in range(2):
        assert wink.json("send", "q", "1", "--id", "once") == [{"id": "once"}]
    assert wink.json("stats", "q")[0]["pending"] == 1


def test_purge_asks_first(wink: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    wink.ok("send", "q", "1")
    monkeypatch.setattr(sys, "stdin", _typed())
    code, _, err = wink("purge", "q")
    assert code == 2
    assert "--yes" in err
    assert wink.json("stats", "q")[0]["pending"] == 1
    assert wink.json("purge", "q", "--yes") == [{"queue": "q", "removed": 1}]


def test_delete_asks_first(wink: Wink, monkeypatch: pytest.MonkeyPatch) -> None:
    wink.ok("send", "q", "1")
    monkeypatch.setattr(sys, "stdin", _typed())
    code, _, err = wink("delete", "q", "--force")
    assert code == 2
    assert "--yes" in err
    stdin = _typed("n\n")
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", stdin)
    code, out, err = wink("delete", "q", "--force")
    assert code != 0
    assert "Delete q, with its messages (1 pending, 0 in flight, 0 delayed)?" in out + err
    assert wink.json("stats", "q")[0]["pending"] == 1


def test_a_queue_with_messages_is_deleted_only_by_force(wink: Wink) -> None:
    wink.ok("send", "q", "1")
    code, out, err = wink("delete", "q", "--yes")
    assert (code, out) == (1, "")
    assert err.startswith("wink: 'q' was not deleted, because it has 1 message")
    assert "--force" in err
    assert wink.json("delete", "q", "--yes", "--force") == [{"queue": "q", "deleted": True}]
    assert wink.json("queues") == []
    code, out, err = wink("delete", "q", "--yes")
    assert (code, out, err) == (0, "", "wink: there is no queue 'q' here\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("send", "q", "not json"), "not JSON"),
        (
            ("send", "q", "1", "--delay", "-1"),
            "wink: --delay must be a number of seconds from 0 to 315360000 (ten years), not -1.0",
        ),
        (("send", "q", "1", "--id", "message_id!"), "wink: --id must be 1 to 128 characters"),
        (("send", "bad name", "1"), "name must be"),
        (("send", "q", "1", "--attribute", "novalue"), "KEY=VALUE"),
        (("receive", "q", "--max", "0"), "wink: --max must be a whole number from 1 to 1000"),
        (("receive", "q", "--visibility", "-1"), "wink: --visibility must be"),
        (("receive", "q", "--wait", "-1"), "wink: --wait must be"),
        (("peek", "q", "--limit", "0"), "wink: --limit must be"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(
    wink: Wink, arguments: tuple[str, ...], told: str
) -> None:
    wink.ok("send", "other", "1")
    code, out, err = wink(*arguments)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert [row["queue"] for row in wink.json("queues")] == ["other"]


def test_control_characters_never_reach_the_terminal(wink: Wink) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\x9b1m"
    wink.ok("send", "q", json.dumps({"evil": evil}), "--attribute", f"k={evil}")
    for shown in (wink.ok("peek", "q"), wink.ok("peek", "q", "--json"), wink.ok("receive", "q")):
        assert not set(shown) & set("\x1b\x07\x9b\u202e"), repr(shown)


def test_an_unreadable_url_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queues", "--url", "ftp://user:secret@host/"]) == 2
    err = capsys.readouterr().err
    assert "secret" not in err
    assert err.startswith("wink: ")


def test_the_installed_command_reads_wink_url(tmp_path: Path) -> None:
    environment = {**os.environ, "WINK_URL": f"sqlite:///{tmp_path / 'env.db'}"}
    command = [sys.executable, "-m", "weakincentives.cli"]
    subprocess.run([*command, "send", "q", "1"], env=environment, check=True, capture_output=True)
    shown = subprocess.run(
        [*command, "queues", "--json"], env=environment, check=True, capture_output=True, text=True
    )
    assert json.loads(shown.stdout)["pending"] == 1


def test_watch_prints_again_until_it_is_ended(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'watch.db'}"
    assert run(["send", "q", "1", "--url", url]) == 0
    command = [sys.executable, "-m", "weakincentives.cli", "stats", "q", "--watch", "--json"]
    process = subprocess.Popen([*command, "--url", url], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert json.loads(process.stdout.readline())["pending"] == 1
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.mark.parametrize(
    "arguments",
    [("stats", "nosuch"), ("peek", "nosuch"), ("receive", "nosuch"), ("purge", "nosuch", "--yes")],
    ids=lambda arguments: arguments[0],
)
@pytest.mark.parametrize("options", [(), ("--json",)], ids=["people", "json"])
def test_a_queue_that_does_not_exist_is_said_to_be_none(
    wink: Wink, arguments: tuple[str, ...], options: tuple[str, ...]
) -> None:
    wink.ok("send", "orders", "1")
    code, _, err = wink(*arguments, *options)
    assert (code, err) == (0, "wink: there is no queue 'nosuch' here\n")
    wink.ok("receive", "orders", "--ack")
    wink.ok(arguments[0], "orders", *arguments[2:], *options)


def test_an_empty_queue_on_redis_may_be_none(
    redis_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["stats", "nosuch", "--url", redis_url]) == 0
    said = capsys.readouterr().err
    assert said == "wink: no messages in 'nosuch' (there may be no such queue)\n"
    assert run(["send", "orders-here", "1", "--url", redis_url]) == 0
    capsys.readouterr()
    assert run(["purge", "orders-here", "--yes", "--url", redis_url]) == 0
    assert capsys.readouterr().err == ""


def test_a_message_sent_to_memory_is_said_to_be_gone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["send", "q", "1", "--url", "memory://"]) == 0
    said = capsys.readouterr().err
    assert said == "wink: memory:// exists only in this process, so the message will be lost\n"


def test_a_missing_directory_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["queues", "--url", f"sqlite:///{tmp_path}/none/test.db"]) == 2
    said = capsys.readouterr().err
    assert said == f"wink: there is no directory {tmp_path}/none\n"


@pytest.mark.parametrize("text", ["", " \n\n"])
def test_an_empty_stdin_is_said_to_be_empty(
    wink: Wink, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(sys, "stdin", _typed(text))
    assert wink("send", "q", "-") == (2, "", "wink: stdin is empty\n")


def test_people_see_deliveries_and_attributes_where_there_are_any(wink: Wink) -> None:
    wink.ok("send", "plain", "1")
    assert "deliver" not in wink.ok("peek", "plain")
    assert "deliver" not in wink.ok("receive", "plain")
    wink.ok("send", "q", "1", "--attribute", "trace=7", "--attribute", "who=a\nb")
    shown = wink.ok("receive", "q", "--visibility", "0")
    assert "deliver" not in shown
    assert '  attributes: {"trace": "7", "who": "a\\nb"}' in shown
    assert ", delivered once)" in wink.ok("peek", "q")
    assert ", delivery 2)" in wink.ok("receive", "q", "--visibility", "0")
    assert ", delivered 2 times)" in wink.ok("peek", "q")
