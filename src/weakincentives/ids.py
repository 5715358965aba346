"""Random and derived ids of messages, replies and receipt handles."""

import hashlib
from base64 import urlsafe_b64encode
from binascii import b2a_base64
from os import urandom

__all__ = ["SequelId", "derived_id", "new_id", "new_ids"]

URL_SAFE = bytes.maketrans(b"+/", b"-_")
BYTES, CHARACTERS = 15, 20


class SequelId(str):
    """The id of a sequel: the reply or the dead letter that handling a message produces.

    It is derived from the message, so every delivery of the message gives the same id. A mailbox
    remembers it for much longer than an id that a sender chose, because the message can be
    redelivered much later.
    """

    __slots__ = ()


def new_id() -> str:
    """Return 20 URL-safe characters with 120 random bits from the operating system.

    A generator inside the process would not do: two processes forked from one parent, or two
    machines resumed from one snapshot, must not create the same ids.
    """
    return b2a_base64(urandom(BYTES), newline=False).translate(URL_SAFE).decode("ascii")


def new_ids(count: int) -> list[str]:
    """Return ``count`` new ids, faster than as many calls of `new_id`."""
    text = b2a_base64(urandom(BYTES * count), newline=False).translate(URL_SAFE).decode("ascii")
    return [text[start : start + CHARACTERS] for start in range(0, len(text), CHARACTERS)]


def derived_id(*parts: str) -> str:
    """Return the id computed from these parts; the same parts always give the same id."""
    digest = hashlib.sha256("\x1f".join(parts).encode("utf-8", "surrogatepass")).digest()
    return urlsafe_b64encode(digest[:BYTES]).decode("ascii")
