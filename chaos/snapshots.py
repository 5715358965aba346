"""What a store really holds, read past the store."""

from pathlib import Path
from typing import Any

import apsw

from chaos.checkers import Snapshot

__all__ = ["integrity", "of_redis", "of_sqlite"]


def of_sqlite(path: Path, queue: str) -> Snapshot:
    """Read the tables of a queue."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(10_000)
        which = "(SELECT id FROM queue WHERE name = ?)"
        with connection:
            waiting = connection.execute(
                f"SELECT id FROM waiting WHERE queue = {which}", (queue,)
            ).fetchall()
            held = connection.execute(
                f"SELECT id, leased FROM held WHERE queue = {which}", (queue,)
            ).fetchall()
    finally:
        connection.close()
    return Snapshot(
        [id for (id,) in waiting],
        [id for id, leased in held if leased],
        [id for id, leased in held if not leased],
    )


def integrity(path: Path) -> list[str]:
    """Return what SQLite finds wrong with the file."""
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        connection.set_busy_timeout(10_000)
        found = [text for (text,) in connection.execute("PRAGMA integrity_check")]
    finally:
        connection.close()
    return [] if found == ["ok"] else [f"corruption: {text}" for text in found]


def of_redis(client: Any, queue: str) -> Snapshot:
    """Read the keys of a queue, in one transaction."""
    pipe = client.pipeline(transaction=True)
    key = f"{{queue:{queue}}}:".__add__
    pipe.lrange(key("pending"), 0, -1)
    pipe.zrange(key("invisible"), 0, -1)
    pipe.zrange(key("delayed"), 0, -1)
    pipe.hkeys(key("data"))
    *places, data = pipe.execute()
    ids = [[_text(record).partition("|")[0] for record in place] for place in places]
    return Snapshot(*ids, data={_text(id) for id in data})


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else value
