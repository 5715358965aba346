"""Two of everything: two files, two users of one file, and one of them in trouble."""

import threading
from pathlib import Path
from typing import Any

import pytest

from testkit.waiting import eventually
from tests.loops.helpers import in_background
from weakincentives import connect
from weakincentives.contrib.mailbox import SQLiteMailbox
from weakincentives.contrib.mailbox.sqlite import file as file_module
from weakincentives.runtime import InMemoryMailbox, MailboxConnectionError, Worker


def test_two_loops_on_two_files_that_answer_into_each_other_get_on(tmp_path: Path) -> None:
    boxes: list[Any] = [
        SQLiteMailbox("jobs", tmp_path / f"{name}.db", durability="normal") for name in "ab"
    ]
    answers: list[Any] = [
        SQLiteMailbox("answers", tmp_path / f"{name}.db", durability="normal") for name in "ba"
    ]
    for number in range(20):
        for box in boxes:
            box.send(number)
    workers = [
        Worker(box, lambda body: body, responses=there)
        for box, there in zip(boxes, answers, strict=True)
    ]
    with in_background(workers[0]), in_background(workers[1]):
        eventually(lambda: all(box.stats().pending == 20 for box in answers), within=120)
    assert [box.stats().total for box in boxes] == [0, 0]


@pytest.mark.parametrize("way", ["responses", "reply"])
def test_one_file_that_is_opened_twice_does_not_lock_itself_out(tmp_path: Path, way: str) -> None:
    path = tmp_path / "box.db"
    with connect(f"sqlite:///{path}") as backend:
        strict: Any = backend.mailbox("jobs")
        quick: Any = SQLiteMailbox("jobs", path, durability="normal")
        results: Any = SQLiteMailbox("results", path, durability="normal")
        assert strict.store._database.file is quick.store._database.file
        with in_background(Worker(strict, lambda body: body, responses=results)):
            if way == "reply":
                assert quick.send_expecting_reply(1).wait(timeout=60) == 1
            else:
                quick.send(1)
                eventually(lambda: results.stats().pending == 1, within=120)


def test_each_user_commits_as_durably_as_it_was_told(tmp_path: Path) -> None:
    path = tmp_path / "box.db"
    strict: Any = SQLiteMailbox("jobs", path)
    quick: Any = SQLiteMailbox("jobs", path, durability="normal")
    writer = strict.store._database.file.writer
    for box, level in ((strict, 2), (quick, 1), (strict, 2)):
        box.send(1)
        assert writer.pragma("synchronous") == level
    assert not quick.store.carries(strict.store)  # it would be less durable than it was told
    assert strict.store.carries(quick.store)


def test_whatever_leads_to_a_file_it_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first: Any = SQLiteMailbox("jobs", "box.db")
    (tmp_path / "symbolic.db").symlink_to(tmp_path / "box.db")
    (tmp_path / "hard.db").hardlink_to(tmp_path / "box.db")
    others: list[Any] = [
        SQLiteMailbox("jobs", name) for name in (tmp_path / "box.db", "symbolic.db", "hard.db")
    ]
    with connect("sqlite:///symbolic.db") as backend:
        others.append(backend.mailbox("jobs"))
        assert {box.store._database.file for box in others} == {first.store._database.file}
    first.send(1)  # a backend that is closed takes nothing from the others
    assert others[0].receive()[0].acknowledge()


def test_an_answer_that_hangs_holds_up_nobody_else(tmp_path: Path) -> None:
    hanging, go_on = threading.Event(), threading.Event()

    class Hanging(InMemoryMailbox[Any, None]):
        def send(self, body: Any, **options: Any) -> str:
            hanging.set()
            go_on.wait(60)
            return super().send(body, **options)

    path = tmp_path / "box.db"
    box: Any = SQLiteMailbox("jobs", path, durability="normal")
    other: Any = SQLiteMailbox("other", path, durability="normal")
    box.send(1)
    with in_background(Worker(box, lambda body: body, responses=Hanging("elsewhere"))):
        assert hanging.wait(120)
        sent = threading.Thread(target=other.send, args=(2,))
        sent.start()
        sent.join(60)
        assert not sent.is_alive()
        go_on.set()
        eventually(lambda: box.stats().total == 0, within=120)


@pytest.mark.parametrize("look", ["stats", "peek", "wait", "queues"])
def test_looks_notice_that_the_file_was_replaced(
    tmp_path: Path, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_module, "LOOK_EVERY", 0.0)
    path = tmp_path / "box.db"
    backend = connect(f"sqlite:///{path}")
    box: Any = backend.mailbox("jobs")
    reply = box.send_expecting_reply("question")
    box.stats()
    path.unlink()
    for leftover in ("-wal", "-shm"):
        Path(f"{path}{leftover}").unlink()
    SQLiteMailbox("other", path).send(1)
    looks = {
        "stats": box.stats,
        "peek": box.peek,
        "wait": lambda: reply.wait(timeout=60),
        "queues": backend.queues,
    }
    for _ in range(2):
        with pytest.raises(MailboxConnectionError, match="removed or replaced"):
            looks[look]()
    backend.close()
    again: Any = SQLiteMailbox("other", path)
    assert again.stats().pending == 1
