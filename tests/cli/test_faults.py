"""``wink`` where something is missing, full, closed or hostile: one line, never a traceback."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import apsw
import pytest

import weakincentives
from weakincentives.cli.app import READER_GONE, run
from weakincentives.runtime.mailbox.seam.store import Outgoing
from weakincentives.runtime.mailbox.testing import driven

COMMAND = [sys.executable, "-m", "weakincentives.cli"]
FULL = Path("/dev/full")

Run = Callable[..., "subprocess.CompletedProcess[str]"]

# Loops whose authors print: what they print stays in a buffer until the process ends.
PRINTING = """
from weakincentives.runtime import Worker

def make(backend):
    print("made")
    worker = Worker(backend.mailbox("q"), print)
    worker.shutdown(timeout=0)
    return worker

def nothing(backend):
    print("nothing")
"""


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'test.db'}"


@pytest.fixture
def wink(tmp_path: Path, url: str) -> Run:
    """Runs ``wink`` as a process, with streams of its own."""

    def call(*arguments: str, **streams: object) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "WINK_URL": url, **streams.pop("env", {})}  # type: ignore[dict-item]
        streams.setdefault("stdout", subprocess.PIPE)
        return subprocess.run(
            [*COMMAND, *arguments],
            cwd=tmp_path,
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
            **streams,  # type: ignore[call-overload]
        )

    return call


@pytest.fixture
def one_sent(url: str) -> None:
    """A message in the queue ``q``."""
    with weakincentives.connect(url) as backend:
        backend.mailbox("q").send(1)


def is_one_line(text: str) -> bool:
    return text.startswith("wink: ") and text.count("\n") == 1


# --- what is not there ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("queues",),
        ("stats",),
        ("stats", "q"),
        ("stats", "--watch"),
        ("peek", "q"),
        ("receive", "q"),
        ("purge", "q", "--yes"),
        ("eval", "collect", "run-1", "data.jsonl"),
    ],
)
def test_a_command_that_reads_makes_nothing(
    tmp_path: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text('{"id": "a", "input": 1, "expected": 1}\n')
    assert run([*command, "--url", "sqlite:///typo.db"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert is_one_line(shown.err)
    assert "there is no file typo.db" in shown.err
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


@pytest.mark.parametrize(
    "command",
    [
        ("send", "bad name", "1"),
        ("send", "q", "1", "--delay", "-1"),
        ("send", "q", "1", "--delay", "nan"),
        ("send", "q", "1", "--id", "bad id"),
        ("send", "q", "1", "--attribute", "novalue"),
        ("send", "q", json.dumps("x" * 2_000_000)),
        ("send", "q", json.dumps("x" * 2_000), "--url", "sqlite:///typo.db?max_bytes=1024"),
        ("send", "q", "1", "--url", "sqlite:///typo.db?durability=none"),
        ("send", "q", "1", "--url", "sqlite:///typo.db?bogus=1"),
        ("worker", "no_such_module:make"),
        ("worker", "json:no_such_function"),
        ("eval", "run", "no_such_module:make", "data.jsonl"),
        ("eval", "submit", "bad name", "data.jsonl"),
    ],
)
def test_a_command_that_is_refused_makes_nothing(
    tmp_path: Path,
    command: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.jsonl").write_text('{"id": "a", "input": 1, "expected": 1}\n')
    assert run([*command, *(() if "--url" in command else ("--url", "sqlite:///typo.db"))]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert is_one_line(shown.err)
    assert [path.name for path in tmp_path.iterdir()] == ["data.jsonl"]


def test_an_empty_file_stays_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty.db").touch()
    assert run(["queues", "--url", f"sqlite:///{tmp_path / 'empty.db'}"]) == 2
    assert "is empty" in capsys.readouterr().err
    assert [(path.name, path.stat().st_size) for path in tmp_path.iterdir()] == [("empty.db", 0)]


# --- standard output ------------------------------------------------------------------------


def nobody_reads() -> int:
    """Return a pipe's end that nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    return writing


@pytest.mark.parametrize(
    "command", [("queues",), ("stats", "q", "--json"), ("peek", "q"), ("receive", "q", "--ack")]
)
def test_a_reader_that_has_had_enough_ends_it_quietly(
    wink: Run, url: str, one_sent: None, command: tuple[str, ...]
) -> None:
    pipe = nobody_reads()
    try:
        done = wink(*command, stdout=pipe)
    finally:
        os.close(pipe)
    assert (done.returncode, done.stderr) == (READER_GONE, "")
    with weakincentives.connect(url) as backend:
        assert backend.mailbox("q").stats().total == 1  # what was not printed was not removed


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_everything_is_sent_though_nobody_reads_the_ids(
    wink: Run, url: str, options: tuple[str, ...]
) -> None:
    pipe = nobody_reads()
    try:
        done = wink("send", "q", "-", *options, stdout=pipe, input="1\n2\n3\n")
    finally:
        os.close(pipe)
    assert (done.returncode, done.stderr) == (0, "")
    with weakincentives.connect(url) as backend:
        assert backend.mailbox("q").stats().pending == 3


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize(
    "command",
    [
        ("queues",),
        ("queues", "--json"),
        ("stats",),
        ("peek", "q"),
        ("receive", "q"),
        ("--help",),
        ("send", "--help"),
        ("--version",),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_disk_is_one_line(
    wink: Run, one_sent: None, command: tuple[str, ...], unbuffered: str
) -> None:
    with FULL.open("w") as full:
        done = wink(*command, stdout=full, env={"PYTHONUNBUFFERED": unbuffered})
    assert done.returncode == 1
    assert done.stderr == "wink: standard output cannot be written: No space left on device\n"


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_what_a_loop_printed_onto_a_full_disk_is_missed_in_the_end(
    wink: Run, tmp_path: Path
) -> None:
    (tmp_path / "printing.py").write_text(PRINTING)
    with FULL.open("w") as full:
        done = wink("worker", "printing:make", stdout=full, env={"PYTHONUNBUFFERED": ""})
    assert done.returncode == 1
    *log, line = done.stderr.splitlines()
    assert line == "wink: standard output cannot be written: No space left on device"
    assert all(" INFO weakincentives." in each for each in log), done.stderr


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_a_full_disk_does_not_hide_what_went_wrong_before(wink: Run, tmp_path: Path) -> None:
    (tmp_path / "printing.py").write_text(PRINTING)
    with FULL.open("w") as full:
        done = wink("worker", "printing:nothing", stdout=full, env={"PYTHONUNBUFFERED": ""})
    assert done.returncode == 2
    first, second = done.stderr.splitlines()
    assert first.startswith("wink: 'printing:nothing' is a NoneType")
    assert second == "wink: standard output cannot be written: No space left on device"


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_on_a_full_disk_everything_is_sent(wink: Run, url: str) -> None:
    with FULL.open("w") as full:
        done = wink("send", "q", "-", stdout=full, input="1\n2\n3\n")
    assert done.returncode == 1
    assert is_one_line(done.stderr)
    assert "all messages were sent" in done.stderr
    with weakincentives.connect(url) as backend:
        assert backend.mailbox("q").stats().pending == 3


def test_a_full_disk_under_the_file_says_how_far_it_came(url: str, one_sent: None) -> None:
    lines = "\n".join([json.dumps("x" * 10_000)] * 100)
    limit = f'ulimit -f 400; exec "{sys.executable}" -m weakincentives.cli send q - --url "{url}"'
    done = subprocess.run(
        ["bash", "-c", limit], input=lines, capture_output=True, text=True, timeout=120
    )
    sent = done.stdout.count("sent ")
    assert done.returncode == 1
    assert is_one_line(done.stderr), done.stderr
    assert done.stderr.startswith(f"wink: message {sent + 1} of stdin: there is no room")
    with weakincentives.connect(url) as backend:
        assert backend.mailbox("q").stats().pending == sent + 1


def test_a_closed_output_is_one_line(url: str, one_sent: None) -> None:
    shell = f'exec "{sys.executable}" -m weakincentives.cli stats --url "{url}" >&-'
    done = subprocess.run(["sh", "-c", shell], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert is_one_line(done.stderr), done.stderr
    assert "standard output is closed" in done.stderr


@pytest.mark.parametrize(
    "environment",
    [
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ],
)
def test_a_terminal_without_utf_8_shows_escapes(wink: Run, environment: dict[str, str]) -> None:
    sent = wink("send", "q", "-", input='"Grüße"\n', env=environment)
    assert (sent.returncode, sent.stderr) == (0, "")
    seen = wink("peek", "q", env=environment)
    assert (seen.returncode, seen.stderr) == (0, "")
    assert '"Gr\\xfc\\xdfe"' in seen.stdout
    table = wink("stats", env=environment)
    assert (table.returncode, table.stderr) == (0, "")
    assert table.stdout.isascii()
    assert "\\u" not in table.stdout
    assert json.loads(wink("peek", "q", "--json", env=environment).stdout)["body"] == "Grüße"


def test_input_that_is_not_utf_8_is_one_line(
    tmp_path: Path, wink: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin").write_bytes(b'"Gr\xfc\xdfe"')
    with (tmp_path / "latin").open("rb") as stdin:
        done = wink("send", "q", "-", stdin=stdin)
    assert done.returncode == 2
    assert is_one_line(done.stderr)
    assert "stdin is not UTF-8" in done.stderr


# --- what others wrote ----------------------------------------------------------------------

HOSTILE = [
    "[/x]",
    "[bold]x[/bold]",
    "a\nsent b",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202egnp",
]


@pytest.mark.parametrize("id", HOSTILE)
def test_an_id_is_neither_markup_nor_a_command_to_the_terminal(
    url: str, id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with weakincentives.connect(url) as backend:
        box = backend.mailbox("q")
        box.send({"x": 1})
        (seen,) = driven(box.store.peek(1, 0))
        box.purge()
        # Not by send(), which checks it: as another program may write it.
        box.store.put_now([Outgoing(id, seen.payload, 0.0, True)])
    for command in (["peek", "q"], ["peek", "q", "--json"], ["receive", "q"]):
        assert run([*command, "--url", url]) == 0
        shown = capsys.readouterr().out
        assert '"x": 1' in shown
        assert len(shown.splitlines()) == (1 if "--json" in command else 2)
        assert not set(shown) & set("\x1b\x07\u202e"), repr(shown)
        if id.startswith("["):
            assert id in shown


@pytest.mark.parametrize("name", ["[/x]", "a b", "\x1b[2J", "\u202egnp", ""])
def test_a_queue_that_another_program_named_hides_no_others(
    tmp_path: Path, url: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for queue in ("one", "two"):
        assert run(["send", queue, "1", "--url", url]) == 0
    connection = apsw.Connection(str(tmp_path / "test.db"))
    connection.execute("INSERT INTO queue(name) VALUES (?)", (name,))
    connection.close()
    capsys.readouterr()
    for command in (["queues"], ["queues", "--json"], ["stats"]):
        assert run([*command, "--url", url]) == 0
        shown = capsys.readouterr()
        assert "one" in shown.out
        assert "two" in shown.out
        assert not set(shown.out + shown.err) & set("\x1b\u202e")


# --- English --------------------------------------------------------------------------------


def test_one_message_is_not_messages(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    for count, told in ((1, "removed 1 message from q"), (2, "removed 2 messages from q")):
        for _ in range(count):
            assert run(["send", "q", "1", "--url", url]) == 0
        capsys.readouterr()
        assert run(["purge", "q", "--yes", "--url", url]) == 0
        assert capsys.readouterr().out == f"{told}\n"
