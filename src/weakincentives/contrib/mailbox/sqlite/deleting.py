"""Deletes queues, inside a transaction.

Other processes keep the id of a queue that they use. So an id is never used for another queue, and
the statement that adds a message fails if the queue is gone.
"""

import random
from typing import Any

import apsw

from weakincentives.runtime.mailbox.errors import MailboxFullError, QueueNotEmptyError

from . import statements
from .queries import QUERIES

__all__ = ["delete_queue", "make_queue"]

MOST_IDS = 1 << 23
"""Ids from here on have no room in the numbers of messages."""
KEPT = 100
"""A queue is kept, even if it is idle, until this many others have been made after it."""
LOOKS = 10
"""How many queues are looked at whenever one is made; more than one, so that they grow fewer."""


def delete_queue(connection: apsw.Connection, name: str, force: bool, now: int) -> bool:
    """Remove a queue and all that it has; return False if there is none."""
    found = connection.execute(QUERIES["find_queue"], (name,)).get
    if found is None:
        return False
    queries = statements.queries_of(found)
    if not force:
        waiting, due, leased, delayed, *_ = connection.execute(queries["stats"], (now,)).get
        if waiting or due or leased or delayed:
            raise QueueNotEmptyError(name, waiting + due, leased, delayed)
    statements.purge(connection, queries)
    _forget(connection, found)
    return True


def make_queue(connection: apsw.Connection, name: str, now: int) -> statements.Queries:
    """Return the statements of a queue, which is made if it is missing.

    Some that are idle go at the same time: many users have one for each caller, for replies.
    """
    connection.execute(QUERIES["add_queue"], (name,))
    is_new = connection.changes() > 0
    id = connection.execute(QUERIES["find_queue"], (name,)).get
    if is_new:
        if id >= MOST_IDS:
            raise MailboxFullError(
                f"{name!r} was not made, and nothing was sent: a file can make {MOST_IDS - 1:,} "
                "queues in its life, and this one has; begin a new file"
            )
        connection.execute(QUERIES["forget_marker"])
        _forget_some_idle(connection, id - KEPT, now)
    return statements.queries_of(id)


def _forget_some_idle(connection: apsw.Connection, before: int, now: int) -> None:
    """Forget a few queues with smaller ids than ``before`` that have no messages and know no ids:
    nobody can tell them from queues that were never made."""
    if before <= 1:
        return
    # Anywhere, because those at the front may all be in use.
    look = (random.randrange(before), before, LOOKS, now - statements.REMEMBER_IDS_US)
    idle: list[Any] = connection.execute(QUERIES["idle_queues"], look).fetchall()
    for (id,) in idle:
        _forget(connection, id)


def _forget(connection: apsw.Connection, id: int) -> None:
    connection.execute(QUERIES["delete_holes"], (id,))
    connection.execute(QUERIES["delete_known"], (id,))
    connection.execute(QUERIES["delete_queue"], (id,))
    if not connection.changes():
        connection.execute(QUERIES["mark_last_id"], (id,))
