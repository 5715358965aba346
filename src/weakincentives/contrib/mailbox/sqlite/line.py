"""What a step does to the line of waiting messages, inside a transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

import apsw

from weakincentives.runtime.mailbox.store import Outgoing

from .era import MICRO
from .queries import load_queries

__all__ = [
    "drop_old",
    "give_back",
    "next_due",
    "parsed",
    "promote",
    "queries_of",
    "settle",
    "take",
    "take_by_id",
    "unknown",
]

QUERIES = load_queries()
REMEMBER_IDS_US = 300 * MICRO
MOST = 1 << 63
NO_MESSAGE = (0, 0)

Queries = Mapping[str, str]


def queries_of(queue: int) -> Queries:
    """Return the statements for one queue; its bounds are constants in them."""
    base = queue << 40
    facts = {
        **{name: QUERIES[name] for name in ("next_place", "count", "held_due")},
        "queue": str(queue),
        "base": str(base),
        "mid": str(base + (1 << 39)),
        "top": str(base + (1 << 40)),
    }
    queries = {}
    for name, text in QUERIES.items():
        for fact, value in facts.items():
            text = text.replace(f"{{{fact}}}", value)
        queries[name] = text
    return queries


def unknown(
    connection: apsw.Connection,
    queries: Queries,
    messages: Sequence[Outgoing],
    now: int,
) -> list[Outgoing]:
    """Leave out the messages whose id is queued or was sent within five minutes."""
    horizon = now - REMEMBER_IDS_US
    connection.execute(queries["forget_ids"], (horizon,))
    fresh = []
    for message in messages:
        if message.given:
            if connection.execute(queries["is_known"], (message.id, horizon)).get:
                continue
            connection.execute(queries["remember_id"], (message.id, now))
        fresh.append(message)
    return fresh


def take(
    connection: apsw.Connection,
    queries: Queries,
    until: int,
    wall: float,
    count: int,
) -> list[Any]:
    """Lease messages from the front of the line."""
    rows: list[Any] = connection.execute(queries["take"], (until, wall, count)).fetchall()
    if rows:
        rows.sort()
        connection.execute(queries["leave_line"], (rows[0][0], rows[-1][0]))
    return rows


def promote(connection: apsw.Connection, queries: Queries, now: int) -> int:
    """Move what has come due to the end of the line; return how many of it were leases."""
    due: list[Any] = connection.execute(queries["due"], (now,)).fetchall()
    if not due:
        return 0
    place = connection.execute(queries["next_place"]).get
    moves = [(place + number, seq) for number, (seq, _) in enumerate(due)]
    connection.executemany(queries["promote"], moves)
    connection.executemany(queries["unhold"], [(seq,) for seq, _ in due])
    return sum(leased for _, leased in due)


def next_due(connection: apsw.Connection, queries: Queries, now: int) -> float | None:
    """Return how many seconds it takes until something held becomes visible."""
    due = connection.execute(queries["next_due"], (now,)).get
    return None if due is None else (due - now) / MICRO


def drop_old(connection: apsw.Connection, queries: Queries, cutoff: int, count: int) -> int:
    """Remove messages at the front that are older than the retention."""
    dropped = 0
    while True:
        front: list[Any] = connection.execute(queries["front"], (count,)).fetchall()
        old = [seq for seq, sent in front if sent < cutoff]
        if not old:
            return dropped
        _leave_line(connection, queries, old)
        dropped += len(old)
        count = max(count, 1000)


def take_by_id(
    connection: apsw.Connection,
    queries: Queries,
    ids: Sequence[str],
    until: int,
    wall: float,
) -> list[Any]:
    """Lease certain messages, wherever they stand in the line."""
    places = _places(connection, queries, set(ids))
    rows = [connection.execute(queries["take_one"], (until, wall, seq)).get for seq in places]
    _leave_line(connection, queries, places)
    return rows


def _places(connection: apsw.Connection, queries: Queries, wanted: set[str]) -> list[int]:
    """Find messages in the line: chosen ids by an index, others by walking along it."""
    places = []
    for id in list(wanted):
        place = connection.execute(queries["place_of_given"], (id,)).get
        if place is not None:
            places.append(place)
            wanted.remove(id)
    if wanted:
        for seq, id in connection.execute(queries["line"]):
            if id in wanted:
                places.append(seq)
                wanted.remove(id)
                if not wanted:
                    break
    return sorted(places)


def _leave_line(connection: apsw.Connection, queries: Queries, places: Sequence[int]) -> None:
    """Take messages out of the line, wherever they stand."""
    connection.executemany(queries["leave_line"], [(seq, seq) for seq in places])
    connection.executemany(queries["add_hole"], [(seq,) for seq in places])
    connection.execute(queries["forget_holes"])


def settle(
    connection: apsw.Connection, sql: str, handles: Sequence[str], *more: int
) -> Sequence[bool]:
    """Run a statement for each handle; say for which of them there was a message."""
    if len(handles) == 1:
        connection.execute(sql, (*parsed(handles[0]), *more))
        return (connection.changes() > 0,)
    arguments = [(*parsed(handle), *more) for handle in handles]
    if arguments:
        # Nearly always all of them are held, and one count says so.
        connection.execute("SAVEPOINT batch")
        before = connection.total_changes()
        connection.executemany(sql, arguments)
        if connection.total_changes() - before == len(arguments):
            connection.execute("RELEASE batch")
            return [True] * len(arguments)
        connection.execute("ROLLBACK TO batch")
        connection.execute("RELEASE batch")
    done = []
    for each in arguments:
        connection.execute(sql, each)
        done.append(connection.changes() > 0)
    return done


def give_back(
    connection: apsw.Connection, queries: Queries, handles: Sequence[str]
) -> Sequence[bool]:
    """Put messages at the end of the line at once: what is sent later must not overtake them."""
    done = []
    for handle in handles:
        receipt = parsed(handle)
        connection.execute(queries["give_back"], receipt)
        done.append(connection.changes() > 0)
        if done[-1]:
            connection.execute(queries["unhold"], receipt[:1])
    return done


def parsed(handle: str) -> tuple[int, int]:
    """Return the place and the token of a receipt handle; what is none matches no message."""
    place, _, token = handle.partition(".")
    try:
        receipt = int(place), int(token)
    except ValueError:
        return NO_MESSAGE
    return receipt if -MOST <= receipt[1] < MOST and 0 < receipt[0] < MOST else NO_MESSAGE
