"""What a step does to the line of waiting messages, inside a transaction."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import apsw

from weakincentives.runtime.mailbox.seam.store import REMEMBER_IDS, GivingBack, Outgoing

from .clock import MICRO
from .queries import QUERIES

__all__ = [
    "drop_old",
    "forget_soon",
    "give_back",
    "leave_line",
    "parsed",
    "purge",
    "put_back_later",
    "queries_of",
    "settle",
    "take",
    "take_by_id",
    "undo",
    "without_repeats",
]

REMEMBER_IDS_US = int(REMEMBER_IDS * MICRO)
MOST = 1 << 63
NO_MESSAGE = (0, 0)
# Statements that are inserted into others; the last one also into those before it.
NESTED = ("next_place", "next_delayed_place", "count", "held_due", "indexed_to")
# An undone message returns to its place if that leaves at most this many holes in the line.
MOST_HOLES = 1000
# How a release with a delay changes the counts: minus deliveries, plus nacks, plus put-offs.
COUNTS: Mapping[GivingBack, tuple[int, int, int]] = {
    "failed": (0, 1, 0),
    "put_off": (0, 1, 1),
    "undone": (1, 0, 0),
}

Queries = Mapping[str, str]


# A new queue is asked for by each message of the transaction that makes it.
@lru_cache(maxsize=64)
def queries_of(queue: int) -> Queries:
    """Return the statements for one queue, with its id and its bounds filled in."""
    base = queue << 40
    facts = {
        **{name: QUERIES[name] for name in NESTED},
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


def without_repeats(
    connection: apsw.Connection,
    queries: Queries,
    messages: Sequence[Outgoing],
    now: int,
) -> list[Outgoing]:
    """Return the messages whose id is neither queued nor was sent within the last five minutes."""
    horizon = now - REMEMBER_IDS_US
    connection.execute(queries["forget_ids"], (horizon,))
    fresh = []
    for message in messages:
        if message.given:
            if connection.execute(queries["is_known"], (message.id, horizon)).get:
                continue
            longer = int((message.remember - REMEMBER_IDS) * MICRO)
            connection.execute(queries["remember_id"], (message.id, now + longer))
        fresh.append(message)
    return fresh


def take(
    connection: apsw.Connection,
    queries: Queries,
    until: int,
    wall: float,
    count: int,
    leased: int,
) -> list[Any]:
    """Lease messages from the front of the line; ``leased`` says whether they join the index."""
    rows: list[Any] = connection.execute(queries["take"], (until, wall, count, leased)).fetchall()
    if rows:
        rows.sort()
        connection.execute(queries["leave_line"], (rows[0][0], rows[-1][0]))
    return rows


def drop_old(connection: apsw.Connection, queries: Queries, cutoff: int, count: int) -> int:
    """Remove messages at the front that are older than the retention."""
    dropped = 0
    while True:
        front: list[Any] = connection.execute(queries["first_in_line"], (count,)).fetchall()
        old = [seq for seq, sent in front if type(sent) is int and sent < cutoff]
        if not old:
            return dropped
        leave_line(connection, queries, old)
        dropped += len(old)
        count = max(count, 1000)


def take_by_id(
    connection: apsw.Connection,
    queries: Queries,
    ids: Sequence[str],
    until: int,
    wall: float,
) -> list[Any]:
    """Lease the messages with these ids, wherever they are in the line."""
    places = _places(connection, queries, set(ids))
    rows = [connection.execute(queries["take_one"], (until, wall, seq)).get for seq in places]
    leave_line(connection, queries, places)
    return rows


def _places(connection: apsw.Connection, queries: Queries, wanted: set[str]) -> list[int]:
    """Find messages in the line: by an index if the sender chose the id, else by a scan."""
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


def leave_line(connection: apsw.Connection, queries: Queries, places: Sequence[int]) -> None:
    """Take messages out of the line, wherever they stand."""
    connection.executemany(queries["leave_line"], [(seq, seq) for seq in places])
    connection.executemany(queries["add_hole"], [(seq,) for seq in places])
    connection.execute(queries["forget_holes"])


def settle(
    connection: apsw.Connection, sql: str, handles: Sequence[str], *more: int
) -> Sequence[bool]:
    """Run a statement for each handle; return for each whether it changed a message."""
    if len(handles) == 1:
        connection.execute(sql, (*parsed(handles[0]), *more))
        return (connection.changes() > 0,)
    arguments = [(*parsed(handle), *more) for handle in handles]
    if arguments:
        # Nearly always all of them are held, and then one count is enough.
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
    connection: apsw.Connection, queries: Queries, handles: Sequence[str], put_off: bool
) -> Sequence[bool]:
    """Put messages at the end of the line now, so that later ones do not overtake them."""
    done = []
    for handle in handles:
        receipt = parsed(handle)
        connection.execute(queries["give_back"], (*receipt, put_off))
        done.append(connection.changes() > 0)
        if done[-1]:
            connection.execute(queries["unhold"], receipt[:1])
        else:
            done[-1] = _drop_cancelled(connection, receipt)
    return done


def put_back_later(
    connection: apsw.Connection,
    queries: Queries,
    handles: Sequence[str],
    delay_us: int,
    how: GivingBack,
) -> Sequence[bool]:
    """Hold messages that were leased for a while longer."""
    done = settle(connection, queries["release"], handles, delay_us, *COUNTS[how])
    if all(done):
        return done
    return [
        ok or _drop_cancelled(connection, parsed(handle))
        for handle, ok in zip(handles, done, strict=True)
    ]


def _drop_cancelled(connection: apsw.Connection, receipt: tuple[int, int]) -> bool:
    """Remove a message that was cancelled since it was leased; False if this is not why."""
    connection.execute(QUERIES["drop_cancelled"], receipt)
    return connection.changes() > 0


def undo(connection: apsw.Connection, queries: Queries, handles: Sequence[str]) -> Sequence[bool]:
    """Put messages back in their old places in the line, as if they had never left it."""
    connection.execute(queries["forget_holes"])
    receipts = [parsed(handle) for handle in handles]
    done = [False] * len(receipts)
    # The last place first, so that a complete batch leaves no holes.
    for number in sorted(range(len(receipts)), key=receipts.__getitem__, reverse=True):
        done[number] = _undo(connection, queries, *receipts[number])
    return done


def _undo(connection: apsw.Connection, queries: Queries, seq: int, token: int) -> bool:
    end = connection.execute(queries["next_place"]).get
    if end is None:
        return False  # the queue was deleted
    following = connection.execute(queries["next_in_line"], (seq,)).get
    holes = range(seq + 1, end if following is None else following)
    if not connection.execute(queries["is_first"], (seq,)).get:
        holes = range(0)  # it was taken from the middle, so the holes around it are known already
    place = seq if len(holes) <= MOST_HOLES else end
    connection.execute(queries["undo"], (seq, token, place))
    if not connection.changes():
        return _drop_cancelled(connection, (seq, token))
    connection.execute(queries["unhold"], (seq,))
    if place == seq:
        connection.execute(queries["fill_hole"], (seq,))
        connection.execute(queries["unindex"], (seq,))
        connection.executemany(queries["add_hole"], [(hole,) for hole in holes])
    return True


def forget_soon(connection: apsw.Connection, queries: Queries, ids: Sequence[str]) -> None:
    """Let chosen ids be known for five minutes from now, those that are known for longer."""
    connection.executemany(queries["forget_soon"], [(id,) for id in ids])


def purge(connection: apsw.Connection, queries: Queries) -> int:
    """Remove every message and forget all ids; return how many messages there were."""
    connection.execute(queries["purge_waiting"])
    gone = connection.changes()
    connection.execute(queries["purge_held"])
    gone += connection.changes()
    connection.execute(queries["purge_known"])
    return gone


def parsed(handle: str) -> tuple[int, int]:
    """Return the place and token of a receipt handle; an invalid one matches no message."""
    place, _, token = handle.partition(".")
    try:
        receipt = int(place), int(token)
    except ValueError:
        return NO_MESSAGE
    return receipt if -MOST <= receipt[1] < MOST and 0 < receipt[0] < MOST else NO_MESSAGE
