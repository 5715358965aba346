"""The Lua scripts, and the names of their keys and arguments."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

__all__ = [
    "CancelSettings",
    "EmitSettings",
    "LeaseSettings",
    "PutSettings",
    "ReplyArguments",
    "Script",
    "SettleSettings",
    "WorkerSettings",
    "script",
]


# Put before a script whose other keys come as arguments; it restores both tables for the script.
ONE_KEY = b"""local KEYS, ARGV = { KEYS[1], unpack(ARGV, 1, %d) }, { unpack(ARGV, %d + 1) }"""


class PutSettings(NamedTuple):
    """The arguments of put.lua before the messages."""

    max_size: int
    replicated: int
    details: str = ""


class LeaseSettings(NamedTuple):
    """The arguments of lease.lua before its token, the handles and the ids."""

    most: int
    lasts: int
    promotes: int
    woken: int
    keeps: int
    repeated: int
    handles: int


class SettleSettings(NamedTuple):
    """The arguments of settle.lua before the handles."""

    step: str
    after: int = 0
    repeated: int = 0


class CancelSettings(NamedTuple):
    """What cancel.lua is given before the ids."""

    begin: int = 0
    repeated: int = 0


class EmitSettings(NamedTuple):
    """What emit.lua is given before the payloads."""

    handle: str
    owner: str
    token: str


class WorkerSettings(NamedTuple):
    """What write_worker.lua is given before the entry."""

    id: str
    lasts: int


class ReplyArguments(NamedTuple):
    """The arguments of reply.lua; most steps need only the first three."""

    step: str
    id: str
    repeated: int = 0
    value: Any = b""
    owner: str = ""
    number: int = 0
    worker: str = ""


# The keys and the arguments of each script by name, in order; mend.lua takes any keys.
KEYS = {
    "put": ("pending", "data", "delayed", "wake", "sent", "entry", "expiry"),
    "lease": ("pending", "invisible", "data", "delayed", "wake", "unreadable", "paused"),
    "settle": ("pending", "invisible", "data", "delayed", "wake"),
    "purge": ("pending", "invisible", "data", "delayed", "wake", "sent", "unreadable"),
    "forget_soon": ("sent",),
    "cancel": ("pending", "invisible", "data", "delayed", "taken"),
    "lease_states": ("invisible", "data"),
    "stats": ("pending", "invisible", "delayed", "unreadable", "data", "paused"),
    "peek": ("pending", "invisible", "delayed", "data"),
    "reply": ("entry", "bell", "expiry", "parts"),
    "emit": ("entry", "parts"),
    "expired_replies": ("expiry",),
    "write_worker": ("workers", "worker_expiry"),
    "workers": ("workers", "worker_expiry"),
    "pause": ("paused", "wake"),
    "paused_names": ("paused_names",),
    "pause_notes": ("paused",),
    "mend": (),
}
ARGUMENTS = {
    "put": PutSettings._fields,
    "lease": (*LeaseSettings._fields, "token"),
    "settle": SettleSettings._fields,
    "forget_soon": ("lasts",),
    "cancel": CancelSettings._fields,
    "peek": ("limit", "offset"),
    "reply": ReplyArguments._fields,
    "emit": EmitSettings._fields,
    "expired_replies": ("limit",),
    "write_worker": (*WorkerSettings._fields, "entry"),
    "pause": ("note",),
    "paused_names": ("step", "name", "note"),
}


class Script(NamedTuple):
    """A script's text, its digest, and the names of its keys."""

    text: bytes
    sha: bytes
    keys: tuple[str, ...] = ()
    repeated: int | None = None
    """The index of the argument that is "1" if the call may be a repeat."""

    def with_one_key(self, others: int) -> bytes:
        """Return the text for a call that passes all keys but the first as its first arguments."""
        flags, rest = self.text.split(b"\n", 1)
        return b"%b\n%b\n%b" % (flags, ONE_KEY % (others, others), rest)


@cache
def script(name: str) -> Script:
    """Read ``scripts/NAME.lua``."""
    text = (files(__package__) / "scripts" / f"{name}.lua").read_bytes()
    sha = hashlib.sha1(text, usedforsecurity=False).hexdigest().encode()
    arguments = ARGUMENTS.get(name, ())
    repeated = arguments.index("repeated") if "repeated" in arguments else None
    return Script(text, sha, KEYS[name], repeated)
