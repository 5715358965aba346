"""Commands as the bytes that go over the wire."""

from collections.abc import Callable, Sequence
from typing import Any

from .scripts import Script

__all__ = ["Head", "pack"]


FEW = 4
"""With at most this many arguments, it is faster to cache the packed part before them."""
MOST_LEADS = 64


class Head:
    """The fixed part of a script call: the script and its keys. Each call adds its arguments."""

    __slots__ = ("_by_sha", "_leads", "keys", "script")

    def __init__(self, script: Script, *keys: bytes) -> None:
        self.script = script
        self.keys = keys
        self._by_sha = (b"EVALSHA", script.sha, b"%d" % len(keys), *keys)
        self._leads: dict[tuple[int, tuple[Any, ...]], bytes] = {}

    def packed(self, settings: tuple[Any, ...], arguments: Sequence[Any]) -> bytes:
        """Return a call as bytes; ``settings`` are arguments that many calls have in common."""
        count = len(arguments)
        if not settings or count > FEW:
            return packed((*self._by_sha, *settings, *arguments))
        lead = self._leads.get((count, settings)) or self._lead(count, settings)
        return lead + bulks(arguments)

    def as_text(self, arguments: Sequence[Any]) -> bytes:
        """Return a call that contains the script's text."""
        return packed((b"EVAL", self.script.text, len(self.keys), *self.keys, *arguments))

    def with_one_key(self, arguments: Sequence[Any]) -> bytes:
        """Return a call that contains the script's text and declares only its first key.

        While a server imports a slot, it refuses a command with several keys if one of them is
        missing, and an empty queue has none of its keys. They share a slot, so declaring one is
        enough.
        """
        first, *others = self.keys
        text = self.script.with_one_key(len(others))
        return packed((b"EVAL", text, 1, first, *others, *arguments))

    def _lead(self, count: int, settings: tuple[Any, ...]) -> bytes:
        if len(self._leads) >= MOST_LEADS:
            self._leads.clear()
        parts = (*self._by_sha, *settings)
        lead = b"*%d\r\n" % (len(parts) + count) + bulks(parts)
        self._leads[count, settings] = lead
        return lead


def bulks(parts: Sequence[Any]) -> bytes:
    """Return the parts of a command as bytes."""
    found = []
    for part in parts:
        if type(part) is not bytes:
            part = part.encode() if type(part) is str else b"%d" % part
        found.append(b"$%d\r\n%b\r\n" % (len(part), part))
    return b"".join(found)


def pack(*parts: Any) -> bytes:
    """Return one command as bytes."""
    return packed(parts)


def _packed(parts: tuple[Any, ...]) -> bytes:
    return b"*%d\r\n" % len(parts) + bulks(parts)


def _quickly_packed(parts: tuple[Any, ...]) -> bytes:
    # While it formats a number, hiredis may run signal handlers, and crashes if one raises.
    plain: Any = tuple([b"%d" % one if type(one) is int else one for one in parts])
    command: bytes = pack_command(plain)
    return command


# redis-py checks each part three times before packing it, a quarter of the cost of a call.
packed: Callable[[tuple[Any, ...]], bytes]
try:
    from hiredis import pack_command
except ImportError:
    packed = _packed
else:
    packed = _quickly_packed
