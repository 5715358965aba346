"""Random identifiers for messages, replies and receipts."""

import hashlib
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from os import urandom

__all__ = ["derived_id", "new_id", "new_ids"]

URL_SAFE = bytes.maketrans(b"+/", b"-_")
BYTES, CHARACTERS = 15, 20


def new_id() -> str:
    """Return 20 URL-safe characters with 120 bits of the system's randomness.

    The system's, not a seeded generator's: two processes forked from one parent, or two machines
    resumed from one snapshot, must not hand out the same ids.
    """
    return b2a_base64(urandom(BYTES), newline=False).translate(URL_SAFE).decode("ascii")


def new_ids(count: int) -> list[str]:
    """Return so many of them, for much less than as many calls."""
    text = b2a_base64(urandom(BYTES * count), newline=False).translate(URL_SAFE).decode("ascii")
    return [text[start : start + CHARACTERS] for start in range(0, len(text), CHARACTERS)]


def derived_id(*parts: str) -> str:
    """Return the one id that these parts always lead to, so that a repeat is recognised."""
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).digest()
    return urlsafe_b64encode(digest[:BYTES]).decode("ascii")
