"""Ids of answers are known for long only while their messages are not done."""

from pathlib import Path

import pytest

from weakincentives import connect
from weakincentives.runtime import Worker, WorkerConfig
from weakincentives.runtime.worker.remembered_ids import MOST, RememberedIds


class Queue:
    """A store, and the mailbox over it, that notes what it is to forget."""

    def __init__(self, name: str) -> None:
        self.name = self.backend_key = name
        self.store = self
        self.forgotten: list[list[str]] = []

    async def forget_soon(self, ids: list[str]) -> None:
        self.forgotten.append(ids)
        if self.name == "gone":
            raise OSError("gone")


def test_ids_are_gathered_by_queue_and_forgotten_together() -> None:
    one, same, other = Queue("one"), Queue("one"), Queue("other")
    sequels = RememberedIds()
    for number in range(MOST - 1):
        sequels.done([(same if number % 2 else one, f"id-{number}")])
        sequels.forget_some()
    assert one.forgotten == []
    sequels.done([(other, "last"), (object(), "not ours")])
    sequels.forget_some()
    assert [len(ids) for ids in one.forgotten] == [MOST - 1]
    assert (same.forgotten, other.forgotten) == ([], [["last"]])
    sequels.forget_all()
    assert len(one.forgotten) == 1


def test_a_queue_that_is_gone_stops_no_other() -> None:
    gone, other = Queue("gone"), Queue("other")
    sequels = RememberedIds()
    sequels.done([(gone, "a"), (other, "b")])
    sequels.forget_all()
    assert other.forgotten == [["b"]]


@pytest.mark.parametrize("batch", [1, 3])
def test_answers_do_not_pile_up_in_a_file(tmp_path: Path, batch: int) -> None:
    """However an answer goes out, with its acknowledgement or before it."""
    with connect(f"sqlite:///{tmp_path}/queues.db") as backend:
        jobs, answers = backend.mailbox("jobs"), backend.mailbox("answers")
        for number in range(10):
            jobs.send(number, reply_to=answers)
        Worker(jobs, str, config=WorkerConfig(batch=batch)).run(
            max_iterations=11, wait_time_seconds=0
        )
        assert answers.stats().pending == 10
        database = answers.store._database
        ((known, long),) = database.read(
            "SELECT count(*), count(*) FILTER (WHERE sent_us > now_us()) FROM known"
        )
        assert (known, long) == (10, 0)
