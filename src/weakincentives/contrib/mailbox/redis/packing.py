"""Commands as the bytes that go over the wire."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from .scripts import Script

__all__ = ["Head", "head", "pack"]


class Head(NamedTuple):
    """A script and its keys, packed once for all calls; what is left are the arguments."""

    script: Script
    keys: Sequence[bytes]
    parts: int
    by_sha: bytes
    tail: bytes

    def packed(self, arguments: Sequence[Any], *, as_text: bool = False) -> bytes:
        """Return a call with these arguments as bytes."""
        tail = _bulks(arguments)
        count = b"*%d\r\n" % (self.parts + len(arguments))
        if as_text:
            return count + _bulks((b"EVAL", self.script.text)) + self.tail + tail
        return count + self.by_sha + tail


def head(script: Script, *keys: bytes) -> Head:
    """Pack a script and its keys."""
    tail = _bulks((len(keys), *keys))
    return Head(script, keys, 3 + len(keys), _bulks((b"EVALSHA", script.sha)) + tail, tail)


def pack(*parts: Any) -> bytes:
    """Return one command as bytes."""
    return b"*%d\r\n" % len(parts) + _bulks(parts)


def _bulks(parts: Sequence[Any]) -> bytes:
    # redis-py's own packing looks at each part three times, which is half of what a call costs.
    packed = []
    for part in parts:
        if type(part) is not bytes:
            part = part.encode() if type(part) is str else b"%d" % part
        packed.append(b"$%d\r\n%b\r\n" % (len(part), part))
    return b"".join(packed)
