"""Decides what to do about an error of the server or the connection."""

import ssl
from enum import Enum
from typing import NamedTuple

from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    InvalidResponse,
    RedisError,
    ResponseError,
)
from redis.exceptions import ConnectionError as LostConnection
from redis.exceptions import TimeoutError as NoAnswer

__all__ = ["TRANSPORT", "Cure", "Verdict", "verdict"]

TRANSPORT = (LostConnection, NoAnswer, InvalidResponse, OSError)
"""Errors after which it is unknown whether the server has executed the command."""

# If redis-py has a class for an error, it removes the code from the message. Which errors have a
# class depends on its version.
CODES = {
    "AskError": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterDownError": "CLUSTERDOWN",
    "MasterDownError": "MASTERDOWN",
    "MovedError": "MOVED",
    "NoPermissionError": "NOPERM",
    "NoScriptError": "NOSCRIPT",
    "OutOfMemoryError": "OOM",
    "ReadOnlyError": "READONLY",
    "TryAgainError": "TRYAGAIN",
}


class Cure(Enum):
    """What to do next."""

    LOAD = "send the script's text"
    GO = "ask the node that was named"
    ASK = "ask the node that was named, this once"
    WAIT = "try the same node again later"
    SEEK = "look for the primary, then try again"
    MEND = "rename keys of the wrong type, then try again"
    FULL = "tell the sender that there is no room"
    GIVE_UP = "tell the caller"


class Verdict(NamedTuple):
    """A cure, the address that it needs, and whether the call may have been carried out."""

    cure: Cure
    address: tuple[str, int] | None = None
    may_have_run: bool = False


BY_CODE = {
    "NOSCRIPT": Cure.LOAD,
    "MOVED": Cure.GO,
    "ASK": Cure.ASK,
    "TRYAGAIN": Cure.WAIT,
    "LOADING": Cure.WAIT,
    "BUSY": Cure.WAIT,
    "NOREPLICAS": Cure.WAIT,
    "READONLY": Cure.SEEK,
    "CLUSTERDOWN": Cure.SEEK,
    "MASTERDOWN": Cure.SEEK,
    "UNBLOCKED": Cure.SEEK,
    "OOM": Cure.FULL,
    "WRONGTYPE": Cure.MEND,
}


def verdict(error: Exception) -> Verdict:
    """Return what to do about an error; this does no I/O."""
    if isinstance(error, AuthenticationError | AuthorizationError):
        return Verdict(Cure.GIVE_UP)
    code = code_of(error)
    cure = BY_CODE.get(code)
    if cure in (Cure.GO, Cure.ASK):
        return Verdict(cure, _address(str(error)))
    if cure is not None:
        return Verdict(cure)
    if isinstance(error, ResponseError):
        return Verdict(Cure.GIVE_UP)
    if isinstance(error, TRANSPORT):
        if _is_distrust(error):
            return Verdict(Cure.GIVE_UP)
        return Verdict(Cure.SEEK, may_have_run=True)
    return Verdict(Cure.GIVE_UP, may_have_run=isinstance(error, RedisError))


def code_of(error: Exception) -> str:
    """Return the code at the start of the server's error, such as MOVED."""
    return CODES.get(type(error).__name__) or str(error).partition(" ")[0]


def _is_distrust(error: BaseException | None) -> bool:
    """Return whether one side rejects the other's certificate, so that a retry is useless."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            reason = error.reason or ""
            return "CERTIFICATE" in reason or "UNKNOWN_CA" in reason
        # redis-py wraps it in an error of its own.
        error = error.__cause__ or error.__context__
    return False


def _address(text: str) -> tuple[str, int]:
    # "MOVED 3999 host:port", with or without the first word; an IPv6 host has colons too.
    host, _, port = text.split()[-1].rpartition(":")
    return host, int(port)
