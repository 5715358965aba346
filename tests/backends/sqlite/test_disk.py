"""Disks that are full and power that fails."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.backends.sqlite.power import ForgetfulDisk
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite.registry import open_database
from weakincentives.runtime.mailbox import MailboxFullError


def test_a_full_disk_is_a_typed_error_and_heals(path: Path) -> None:
    database = open_database(path, "normal")
    box = SQLiteMailbox[str]("jobs", database, reply_type=str)
    writer = database.file.writer
    assert writer is not None
    pages = writer.pragma("page_count")
    writer.pragma("max_page_count", pages + 20)
    with pytest.raises(MailboxFullError, match="no room on the disk"):
        for _ in range(1000):
            box.send("x" * 1000)
    sent = box.approximate_count()
    assert 10 < sent < 100
    with pytest.raises(MailboxFullError, match="no room on the disk"):
        box.send_batch(["x" * 1000] * 50)
    with pytest.raises(MailboxFullError, match="no room on the disk"):
        box.send_expecting_reply("x" * 100_000)
    assert box.stats().pending == sent
    assert database.read("SELECT count(*) FROM reply") == [(0,)]
    assert not writer.in_transaction
    # Consuming makes room, and what was refused fits then.
    received = 0
    while messages := box.receive(max_messages=1):
        received += len(messages)
        assert messages[0].acknowledge()
    assert received == sent
    box.send("x" * 1000)
    writer.pragma("max_page_count", 1_000_000)
    assert len(box.send_batch(["x" * 1000] * 500)) == 500
    assert box.approximate_count() == 501
    assert database.read("PRAGMA integrity_check") == [("ok",)]
    database.close()


LIMITED = """
import resource, sys
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.runtime.mailbox import MailboxFullError

box = SQLiteMailbox("jobs", sys.argv[1])
box.send("first")
_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
sent = 1
try:
    for _ in range(10_000):
        box.send("x" * 1000)
        sent += 1
except MailboxFullError as error:
    assert "no room on the disk" in str(error), error
else:
    raise SystemExit("the limit did nothing")
try:
    box.send_batch(["x" * 1000] * 100)
except MailboxFullError:
    pass
assert box.approximate_count() == sent, (box.stats(), sent)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
box.send_batch(["x" * 1000] * 100)
assert box.approximate_count() == sent + 100
print("healed", sent)
"""


def test_a_limit_on_the_size_of_files_is_a_full_disk(path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("healed")
    database = open_database(path)
    assert database.read("PRAGMA integrity_check") == [("ok",)]
    database.close()


def outages(directory: Path, durability: str, seed: int) -> int:
    """Work on a forgetful disk and cut the power now and then; return how many sends were lost."""
    chance = random.Random(seed)
    lost = 0
    with ForgetfulDisk() as disk:
        database = open_database(directory / "box.db", durability)
        box = SQLiteMailbox[int]("jobs", database)
        there: set[str] = set()
        for step in range(120):
            action = chance.random()
            if action < 0.5:
                there.add(box.send(step))
            elif action < 0.6:
                there.update(box.send_batch([step] * chance.randrange(1, 30)))
            elif action < 0.8:
                for message in box.receive(max_messages=3, visibility_timeout=1000):
                    message.acknowledge()
                    there.discard(message.id)
            elif action < 0.85:
                writer = database.file.writer
                assert writer is not None
                writer.wal_checkpoint(mode=chance.randrange(3))
            if action > 0.9:
                after = directory / f"after-{step}"
                disk.lose_power(after, chance)
                lost += len(there - ids_in(after / "box.db", there, durability))
        database.close()
    return lost


def ids_in(path: Path, expected: set[str], durability: str) -> set[str]:
    found = subprocess.run(
        [sys.executable, "-c", READ, str(path)], capture_output=True, text=True, timeout=240
    )
    assert found.returncode == 0, found.stderr
    integrity, *ids = found.stdout.split()
    assert integrity == "ok"
    if durability == "full":
        assert set(ids) <= expected, "an acknowledged message came back"
        assert len(ids) == len(set(ids))
    return set(ids)


# In a process of its own, for here the forgetful disk is SQLite's default.
READ = """
import apsw, sys
connection = apsw.Connection(sys.argv[1])
print(connection.pragma("integrity_check"))
tables = connection.execute("SELECT count(*) FROM sqlite_schema").get
if tables:
    for (id,) in connection.execute("SELECT id FROM waiting UNION ALL SELECT id FROM held"):
        print(id)
"""


@pytest.mark.parametrize("seed", range(4))
def test_full_durability_survives_a_power_failure(tmp_path: Path, seed: int) -> None:
    assert outages(tmp_path, "full", seed) == 0


@pytest.mark.full
@pytest.mark.parametrize("seed", range(100, 140))
def test_full_durability_survives_many_power_failures(tmp_path: Path, seed: int) -> None:
    assert outages(tmp_path, "full", seed) == 0


def test_the_forgetful_disk_does_forget(tmp_path: Path) -> None:
    """The control: without an fsync at each commit the same outages lose messages."""
    assert outages(tmp_path, "normal", 1) > 0
