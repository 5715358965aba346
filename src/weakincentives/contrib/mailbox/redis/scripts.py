"""The Lua scripts, as the server knows them."""

import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

__all__ = ["Script", "script"]


class Script(NamedTuple):
    """A script's text and the digest that stands for it."""

    text: bytes
    sha: bytes


@cache
def script(name: str) -> Script:
    """Read ``scripts/NAME.lua``."""
    text = (files(__package__) / "scripts" / f"{name}.lua").read_bytes()
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest().encode())
