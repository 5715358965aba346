"""Renames keys of the wrong type, which another program wrote and on which every script fails."""

from .resp import Head
from .script_call import Call
from .scripts import script

__all__ = ["renaming_call"]

TYPES = {
    b"pending": b"list",
    b"invisible": b"zset",
    b"data": b"hash",
    b"delayed": b"zset",
    b"wake": b"zset",
    b"sent": b"zset",
    b"unreadable": b"list",
    b"entry": b"hash",
    b"bell": b"list",
    b"expiry": b"zset",
    b"parts": b"stream",
    b"taken": b"hash",
    b"paused": b"string",
    b"paused_names": b"hash",
    b"workers": b"hash",
    b"worker_expiry": b"zset",
}


def renaming_call(head: Head) -> Call:
    """Return the call that renames a script's keys of the wrong type."""
    names, types = [], []
    for key in head.keys:
        tag, _, rest = key.partition(b"}:")
        part = rest.partition(b":")[0]
        names.append(tag + b"}:unreadable:" + part)
        types.append(TYPES[part])
    return Call(Head(script("mend"), *head.keys, *names), types)
