"""Bugs to be planted in this process, so that the scenarios can prove that they would notice.

The foundation's mutants are in tests/contract/mutants.py, the seeds' scripts in
tests/chaos/seed_scripts.py; these are of the SQL and of the loops.
"""

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

__all__ = ["PLANTS", "plant"]


def plant(name: str) -> None:
    """Break this process in one way, for good."""
    PLANTS[name]()


def handle_not_compared() -> None:
    """SQLite: the place in line is enough to settle a message."""
    _rewrite("token = ?2", "?2 = ?2")
    _rewrite("token = ?", "? NOT NULL")


def expiry_not_checked() -> None:
    """SQLite: a lease that ran out still holds until somebody receives the message."""
    _rewrite(" AND visible_us > now_us()", "", only=("acknowledge", "release", "extend"))


def no_transaction() -> None:
    """SQLite: each statement is a transaction of its own."""
    from weakincentives.contrib.mailbox.sqlite import database

    def enter(self: Any) -> Any:
        writer = begin(self)
        if self._database._depth == 1:
            writer.execute("COMMIT")
        return writer

    def finish(self: Any, writer: Any, error: Any) -> Any:
        return self._database._news

    begin = database.Transaction.__enter__
    database.Transaction.__enter__ = enter  # type: ignore[method-assign]
    database.Transaction._finish = finish  # type: ignore[method-assign]


def ack_before_reply() -> None:
    """Loops: a request is acknowledged first, then answered."""
    from weakincentives.runtime.source import Source

    def take(
        self: Any,
        done: Any,
        count: int,
        visibility: float,
        wait: float,
        stop: Any,
        first: Any = None,
    ) -> Any:
        if first is not None:
            for job in done:
                self.mailbox.store.acknowledge([job.message.receipt_handle])
            first()
        return usual(self, done, count, visibility, wait, stop)

    usual = Source.take
    Source.take = take  # type: ignore[method-assign]


def ack_before_dead_letter() -> None:
    """Loops: a message is acknowledged first, then sent to the dead letters."""
    from weakincentives.runtime.settler import Settler

    def dead_letter(self: Any, job: Any, error: BaseException) -> bool:
        self._source.mailbox.store.acknowledge([job.message.receipt_handle])
        return usual(self, job, error)

    usual = Settler._dead_letter
    Settler._dead_letter = dead_letter  # type: ignore[method-assign]


def only_the_job_at_work_is_kept() -> None:
    """Loops: what waits its turn in a batch has nobody to extend its lease."""
    from weakincentives.runtime.worker import Worker

    def work(self: Any, lane: Any) -> None:
        for job in lane.waiting[1:]:
            job.lease.release()
        usual(self, lane)

    usual = Worker._work
    Worker._work = work  # type: ignore[method-assign]


def replies_without_an_id() -> None:
    """Loops: a reply that is sent again is another reply."""
    from weakincentives.runtime.mailbox.message import Message

    def reply(self: Any, value: Any, message_id: str | None) -> Any:
        return usual(self, value, None)

    usual = Message._reply
    Message._reply = reply  # type: ignore[method-assign]


def beats_by_the_wall_clock() -> None:
    """Loops: when a lease is to be extended is told by the wall clock."""
    from weakincentives.runtime import lease_extender, lease_scheduler

    wall: Any = SimpleNamespace(monotonic=time.time)
    lease_extender.time = lease_scheduler.time = wall  # type: ignore[attr-defined]


PLANTS: dict[str, Callable[[], None]] = {
    one.__name__: one
    for one in (
        handle_not_compared,
        expiry_not_checked,
        no_transaction,
        ack_before_reply,
        ack_before_dead_letter,
        only_the_job_at_work_is_kept,
        replies_without_an_id,
        beats_by_the_wall_clock,
    )
}


def _rewrite(old: str, new: str, only: tuple[str, ...] = ()) -> None:
    from weakincentives.contrib.mailbox.sqlite import store

    for name in only or ("acknowledge", "release", "extend"):
        store.QUERIES[name] = store.QUERIES[name].replace(old, new)
