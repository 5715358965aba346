"""Odd files and bad URLs: one clear line each, and nothing is overwritten."""

import gc
import os
import sqlite3
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest

from testkit.waiting import eventually
from weakincentives import connect
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite import file as file_module
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxClosedError,
    MailboxConnectionError,
    MailboxError,
)


def url(path: Path, query: str = "") -> str:
    return f"sqlite:///{path}{query}"


def refusal(path: Path) -> str:
    with pytest.raises(MailboxError) as caught:
        connect(url(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_new_file_is_private_whatever_the_umask(path: Path) -> None:
    before = os.umask(0)
    try:
        with connect(url(path)) as backend:
            backend.mailbox("jobs").send(1)
            files = sorted(path.parent.iterdir())
            assert [file.name for file in files] == [
                "box.db",
                "box.db-shm",
                "box.db-wake",
                "box.db-wal",
            ]
            assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    finally:
        os.umask(before)


def test_a_file_that_others_may_use_keeps_its_mode(path: Path) -> None:
    with connect(url(path)) as backend:
        backend.mailbox("jobs").send(1)
    Path(f"{path}-wake").unlink()
    path.chmod(0o660)
    with connect(url(path)) as backend:
        backend.mailbox("jobs").send(1)
        assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o660}


@pytest.mark.parametrize(
    "content", [b"hello", b"not a database " * 1000, b"SQLite format 3\0" + b"x" * 500]
)
def test_what_is_not_a_database_is_left_alone(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    assert "not a SQLite database" in refusal(path)
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["box.db"]


def test_somebody_elses_database_is_left_alone(path: Path) -> None:
    theirs = sqlite3.connect(path)
    theirs.execute("CREATE TABLE customers (name)")
    theirs.close()
    before = path.read_bytes()
    assert "database of another program" in refusal(path)
    assert path.read_bytes() == before


def test_a_newer_file_is_not_opened(path: Path) -> None:
    connect(url(path)).close()
    newer = apsw.Connection(str(path))
    newer.pragma("user_version", 99)
    newer.close()
    before = path.read_bytes()
    assert "schema 99, this one supports up to 4); upgrade" in refusal(path)
    assert path.read_bytes() == before


def test_a_damaged_file_says_so(path: Path) -> None:
    with connect(url(path)) as backend:
        backend.mailbox("jobs").send_batch(["x" * 500] * 500)
    size = path.stat().st_size
    with path.open("r+b") as file:
        for place in range(4096, size, 4096):
            file.seek(place)
            file.write(os.urandom(64))
    with pytest.raises(MailboxConnectionError, match="is damaged"):
        backend = connect(url(path))
        try:
            backend.mailbox("jobs").receive(max_messages=1000)
        finally:
            backend.close()


def test_an_empty_file_becomes_a_database(path: Path) -> None:
    path.touch()
    with connect(url(path)) as backend:
        assert backend.queues() == []


def test_directories(path: Path) -> None:
    assert "is a directory" in refusal(path.parent)
    assert "does not exist; create it first" in refusal(path.parent / "missing" / "box.db")


AS_NOBODY = """
import os, sys
from weakincentives import connect
from weakincentives.runtime.mailbox import MailboxError
connect(sys.argv[2]).close()  # imports what nobody may not be able to read
os.setegid(65534); os.seteuid(65534)
try:
    connect(sys.argv[1])
except MailboxError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    ("mode", "directory_mode", "message"),
    [
        (0o000, 0o777, "cannot be opened"),
        (0o444, 0o777, "cannot be written"),
        (0o444, 0o555, "cannot be"),
        (0o600, 0o000, "cannot be reached"),
    ],
)
def test_files_without_permission(
    tmp_path: Path, mode: int, directory_mode: int, message: str
) -> None:
    with tempfile.TemporaryDirectory() as directory:  # pytest's own are closed to others
        path = Path(directory) / "box.db"
        connect(url(path)).close()
        Path(f"{path}-wake").chmod(0o666)
        before = path.read_bytes()
        path.chmod(mode)
        path.parent.chmod(directory_mode)
        program = AS_NOBODY
        if os.geteuid() != 0:
            program = program.replace("os.setegid(65534); os.seteuid(65534)", "")
        command = [sys.executable, "-c", program, url(path), url(tmp_path / "warm.db")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        path.parent.chmod(0o700)
        path.chmod(0o600)
        assert done.stdout.startswith("MailboxConnectionError"), done.stderr
        assert message in done.stdout
        assert path.read_bytes() == before


@pytest.mark.parametrize(
    "bad",
    [
        "sqlite://",
        "sqlite:///",
        "sqlite://box.db",
        "sqlite://host/box.db",
        "sqlite:///box.db?durability=maybe",
        "sqlite:///box.db?speed=high",
        "sqlite:///box.db#part",
        "sqlite:///%00",
        "sqlite:///:memory:",
    ],
)
def test_bad_urls(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidParameterError) as caught:
        connect(bad)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_urls_name_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, file in (("box.db", "box.db"), ("a%20b%3F%23%25.db?durability=normal", "a b?#%.db")):
        with connect(f"sqlite:///{name}") as backend:
            backend.mailbox("jobs").send({"n": 1})
            assert (tmp_path / file).exists()
            assert backend.queues() == ["jobs"]


def test_durability_is_what_was_asked_for(path: Path) -> None:
    for durability, level in (("full", 2), ("normal", 1)):
        box = SQLiteMailbox("jobs", path, durability=durability)
        box.send(1)
        writer = box.store._database.file.writer
        assert writer.pragma("synchronous") == level
        assert writer.pragma("journal_mode") == "wal"
    with pytest.raises(InvalidParameterError, match="durability"):
        SQLiteMailbox("jobs", path, durability="off")


def test_a_reply_that_was_read_goes_without_an_fsync_and_what_follows_does_not(path: Path) -> None:
    with connect(url(path)) as backend:
        box: Any = backend.mailbox("jobs")
        reply = box.send_expecting_reply(1)
        box.receive()[0].reply(2)
        ran: list[str] = []
        writer = backend._database.file.writer  # type: ignore[attr-defined]
        writer.exec_trace = lambda cursor, sql, bindings: ran.append(sql) or True
        assert reply.wait() == 2
        box.send(3)
        hasty, delete, slow, insert = ran
        assert (hasty, slow) == ("PRAGMA synchronous = 1", "PRAGMA synchronous = 2")
        assert (delete[:6], insert[:6]) == ("DELETE", "INSERT")
        writer.exec_trace = None
        assert writer.pragma("synchronous") == 2


def test_many_mailboxes_share_the_files(path: Path, open_files: Callable[[], int]) -> None:
    before = open_files()
    boxes = [SQLiteMailbox(f"jobs-{number}", path) for number in range(50)]
    for box in boxes:
        box.send(1)
        assert box.receive(wait_time_seconds=1)[0].acknowledge()
        assert box.stats().pending == 0
    assert open_files() - before <= 10


def test_closing_a_backend_closes_all_and_says_so(
    path: Path, open_files: Callable[[], int]
) -> None:
    before = open_files()
    backend = connect(url(path))
    box = backend.mailbox("jobs")
    box.send(1)
    (message,) = box.receive(wait_time_seconds=1)
    assert box.receive(wait_time_seconds=0.01) == []
    box.close()
    assert message.acknowledge()
    assert open_files() > before
    backend.close()
    assert open_files() == before
    assert sorted(file.name for file in path.parent.iterdir()) == ["box.db", "box.db-wake"]
    with pytest.raises(MailboxClosedError):
        backend.mailbox("more")
    with pytest.raises(MailboxClosedError):
        backend.queues()


def test_a_mailbox_that_nobody_has_any_more_leaves_no_file_open(
    path: Path, open_files: Callable[[], int]
) -> None:
    before = open_files()
    box = SQLiteMailbox[int]("jobs", path)
    box.send(1)
    assert box.receive(wait_time_seconds=1)
    assert open_files() > before
    del box
    eventually(lambda: open_files() == before)  # the thread that watched ends by itself


@pytest.mark.parametrize("fate", ["removed", "replaced"])
def test_a_file_that_is_gone_takes_no_more_messages(
    path: Path, fate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "LOOK_EVERY", 0.0)
    box: SQLiteMailbox[int] = SQLiteMailbox("jobs", path)
    box.send(1)
    (held,) = box.receive()
    path.unlink()
    for leftover in ("-wal", "-shm"):
        Path(f"{path}{leftover}").unlink()
    if fate == "replaced":
        other = subprocess.run(
            [sys.executable, "-c", ANOTHER, str(path)], check=True, capture_output=True, text=True
        )
        assert other.stdout == "sent\n"
    for step in (partial(box.send, 2), held.acknowledge, box.receive):
        with pytest.raises(MailboxConnectionError, match="removed or replaced"):
            step()
    assert path.exists() == (fate == "replaced")
    again: SQLiteMailbox[int] = SQLiteMailbox("jobs", path)
    again.send(3)
    del box, held
    gc.collect()
    bodies = [message.body for message in again.receive(max_messages=5)]
    assert bodies == ([7, 3] if fate == "replaced" else [3])


ANOTHER = """
import os, sys
from weakincentives.contrib.mailbox import SQLiteMailbox
SQLiteMailbox("other", sys.argv[1]).send(0)
SQLiteMailbox("jobs", sys.argv[1]).send(7)
print("sent", flush=True)
os._exit(0)  # so that the journal stays
"""


def test_a_name_that_sqlite_takes_for_memory_is_refused() -> None:
    with pytest.raises(InvalidParameterError, match="memory://"):
        SQLiteMailbox("jobs", ":memory:")


def test_two_backends_on_one_file_are_independent(path: Path) -> None:
    first, second = connect(url(path)), connect(url(path))
    first.mailbox("jobs").send(1)
    first.close()
    assert [message.body for message in second.mailbox("jobs").receive()] == [1]
    second.close()
