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
    from weakincentives.contrib.mailbox.sqlite.database import Database

    def transact(self: Any, work: Callable[..., Any], *arguments: Any) -> Any:
        with self.file.lock:
            return work(self.file.ready(self.level), *arguments)

    Database.transact = transact  # type: ignore[method-assign]


def ack_before_reply() -> None:
    """Loops: a request is acknowledged first, then answered."""
    from weakincentives.runtime.worker.inbox import Inbox

    def exchange(
        self: Any,
        done: Any,
        count: int,
        visibility: float,
        wait: float,
        stop: Any,
        carried: Any = (),
    ) -> Any:
        if carried:
            self._mailbox._plain.acknowledge_now([one.answer.handle for one in carried])
        return usual(self, done, count, visibility, wait, stop, carried)

    async def reply(self: Any, message: Any, value: Any, id: str) -> Any:
        self._mailbox._plain.acknowledge_now([message.receipt_handle])
        return await reply_usually(self, message, value, id)

    usual, reply_usually = Inbox.exchange, Inbox.reply
    Inbox.exchange, Inbox.reply = exchange, reply  # type: ignore[method-assign]


def ack_before_dead_letter() -> None:
    """Loops: a message is acknowledged first, then sent to the dead letters."""
    from weakincentives.runtime.worker.settle import OutcomeExecutor

    async def dead_letter(self: Any, attempt: Any, failed: Any) -> bool:
        await self._inbox.store.acknowledge([attempt.message.receipt_handle])
        return await usual(self, attempt, failed)

    usual = OutcomeExecutor._dead_letter
    OutcomeExecutor._dead_letter = dead_letter  # type: ignore[method-assign]


def only_the_job_at_work_is_kept() -> None:
    """Loops: what waits its turn in a batch has nobody to extend its lease."""
    from weakincentives.runtime.worker.thread import WorkerThread

    def work(self: Any) -> None:
        for attempt in self.waiting[1:]:
            attempt.lease.release()
        usual(self)

    usual = WorkerThread._work
    WorkerThread._work = work  # type: ignore[method-assign]


def replies_without_an_id() -> None:
    """Loops: a reply that is sent again is another reply."""
    from weakincentives.runtime.mailbox.message import Message

    def reply(self: Any, value: Any, *, message_id: str | None = None) -> Any:
        return usual(self, value)

    def carry(self: Any, target: Any, value: Any, message_id: Any, **options: Any) -> Any:
        return carry_usually(self, target, value, None, **options)

    usual, carry_usually = Message.reply, Message._carried_to
    Message.reply, Message._carried_to = reply, carry  # type: ignore[method-assign]


def beats_by_the_wall_clock() -> None:
    """Loops: when a lease is to be extended is told by the wall clock."""
    from weakincentives.runtime.leases import extender as lease_extender
    from weakincentives.runtime.leases import scheduler as lease_scheduler

    wall: Any = SimpleNamespace(monotonic=time.time)
    lease_extender.time = lease_scheduler.time = wall  # type: ignore[attr-defined]


def one_thread_for_all_leases() -> None:
    """Loops: leases of all backends are extended by one thread, in turn."""
    from weakincentives.runtime.leases.scheduler import LeaseSchedulers

    def of(self: Any, backend: object) -> Any:
        return usual(self, "all")

    usual = LeaseSchedulers.of
    LeaseSchedulers.of = of  # type: ignore[method-assign]


def nothing_given_back() -> None:
    """Loops: one that is interrupted leaves what it has in hand to the end of the leases."""
    from weakincentives.runtime.worker.thread import WorkerThread

    def leave(self: Any) -> None:
        pass

    WorkerThread._leave = leave  # type: ignore[method-assign]


def failures_untold() -> None:
    """Loops: a job that is given up goes to the dead letters, and its caller hears nothing."""
    from weakincentives.runtime.worker import decide
    from weakincentives.runtime.worker.settle import OutcomeExecutor

    def tell_nobody(self: Any, *facts: Any) -> Any:
        return decide.REMOVE

    OutcomeExecutor._error_reply = tell_nobody  # type: ignore[method-assign]


def owner_not_compared() -> None:
    """SQLite: whoever had a message that asked for a reply may answer, also after its replay."""
    from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow

    def belong_to_all(self: Any, owner: Any) -> bool:
        return True

    _rewrite("owner = ?4", "?4 = ?4", only=("reply_resolve",))
    ReplyRow.belongs_to = belong_to_all  # type: ignore[method-assign]


def settled_replies_change() -> None:
    """SQLite: a reply that is settled takes the next answer, too."""
    _rewrite("state = 'pending' AND", "", only=("reply_resolve",))


def parts_counted_anew() -> None:
    """SQLite: each start of a job counts its parts from 0."""
    _rewrite("series = series + 1", "series = series + 1, parts = 0", only=("reply_start",))


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
        one_thread_for_all_leases,
        nothing_given_back,
        failures_untold,
        owner_not_compared,
        settled_replies_change,
        parts_counted_anew,
    )
}


def _rewrite(old: str, new: str, only: tuple[str, ...] = ()) -> None:
    from weakincentives.contrib.mailbox.sqlite import store

    for name in only or ("acknowledge", "release", "extend"):
        store.QUERIES[name] = store.QUERIES[name].replace(old, new)
