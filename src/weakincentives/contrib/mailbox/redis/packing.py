"""Commands as the bytes that go over the wire."""

from collections.abc import Callable, Sequence
from typing import Any

from .scripts import Script

__all__ = ["Head", "pack"]


FEW = 4
"""With so few arguments, it pays not to pack again what comes before them."""
MOST_LEADS = 64


class Head:
    """A script and its keys; what is left are the arguments."""

    def __init__(self, script: Script, *keys: bytes) -> None:
        self.script = script
        self.keys = keys
        self._by_sha = (b"EVALSHA", script.sha, len(keys), *keys)
        self._leads: dict[tuple[int, tuple[Any, ...]], bytes] = {}

    def packed(self, settings: tuple[Any, ...], arguments: Sequence[Any]) -> bytes:
        """Return a call as bytes; ``settings`` are arguments that many calls have in common."""
        count = len(arguments)
        if not settings or count > FEW:
            return packed((*self._by_sha, *settings, *arguments))
        lead = self._leads.get((count, settings)) or self._lead(count, settings)
        return lead + bulks(arguments)

    def as_text(self, arguments: Sequence[Any]) -> bytes:
        """Return a call that brings the script along."""
        return packed((b"EVAL", self.script.text, len(self.keys), *self.keys, *arguments))

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


# redis-py looks at each part three times before it packs them, a quarter of what a call costs.
packed: Callable[[tuple[Any, ...]], bytes]
try:
    from hiredis import pack_command as packed
except ImportError:
    packed = _packed
