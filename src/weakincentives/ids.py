"""Random identifiers for messages, replies and receipts."""

import hashlib
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from os import urandom

__all__ = ["derived_id", "new_id"]

URL_SAFE = bytes.maketrans(b"+/", b"-_")


def new_id() -> str:
    """Return 20 URL-safe characters with 120 bits of the system's randomness.

    The system's, not a seeded generator's: two processes forked from one parent, or two machines
    resumed from one snapshot, must not hand out the same ids.
    """
    return b2a_base64(urandom(15), newline=False).translate(URL_SAFE).decode("ascii")


def derived_id(*parts: str) -> str:
    """Return the one id that these parts always lead to, so that a repeat is recognised."""
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).digest()
    return urlsafe_b64encode(digest[:15]).decode("ascii")
