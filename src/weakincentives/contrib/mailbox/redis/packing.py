"""Commands as the bytes that go over the wire."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .scripts import Script

__all__ = ["Head", "head", "pack"]


class Head(NamedTuple):
    """A script and its keys; what is left are the arguments."""

    script: Script
    keys: tuple[bytes, ...]
    by_sha: tuple[Any, ...]

    def packed(self, arguments: Sequence[Any], *, as_text: bool = False) -> bytes:
        """Return a call with these arguments as bytes."""
        if as_text:
            return packed((b"EVAL", self.script.text, *self.by_sha[2:], *arguments))
        return packed((*self.by_sha, *arguments))


def head(script: Script, *keys: bytes) -> Head:
    """Bind a script to its keys."""
    return Head(script, keys, (b"EVALSHA", script.sha, len(keys), *keys))


def pack(*parts: Any) -> bytes:
    """Return one command as bytes."""
    return packed(parts)


def _packed(parts: tuple[Any, ...]) -> bytes:
    bulks = [b"*%d\r\n" % len(parts)]
    for part in parts:
        if type(part) is not bytes:
            part = part.encode() if type(part) is str else b"%d" % part
        bulks.append(b"$%d\r\n%b\r\n" % (len(part), part))
    return b"".join(bulks)


# redis-py looks at each part three times before it packs them, a quarter of what a call costs.
packed: Callable[[tuple[Any, ...]], bytes]
try:
    from hiredis import pack_command as packed
except ImportError:
    packed = _packed
