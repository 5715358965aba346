"""What is kept of an error: enough to find the cause, without secrets, and bounded."""

import os
import re
import socket
import traceback

__all__ = ["described", "error_type", "stack_of", "worker_name"]

MAX_TEXT = 2_000
MAX_STACK = 8_000

_SECRETS = (
    # user:password@ in a URL
    (re.compile(r"(?<=://)[^/@\s'\"]*@"), "***@"),
    # password=…, "api_key": "…", Authorization: Bearer …
    (
        re.compile(
            r"(?i)((?:[\w-]*(?:password|passwd|secret|token|api[_-]?key|credential)s?[\w-]*"
            r"|authorization)"
            r"[\"']?\s*[:=]\s*(?:bearer\s+|basic\s+)?)(?:\"[^\"]*\"|'[^']*'|[^\s,;&\"']+)"
        ),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer\s+)[\w.~+/-]{8,}=*"), r"\1***"),
)


def error_type(error: BaseException) -> str:
    """Return the full name of an error's type."""
    return f"{type(error).__module__}.{type(error).__qualname__}"


def described(error: BaseException) -> str:
    """Return what an error says, redacted and bounded."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - an error that cannot be shown must not hide the failure
        text = "(its text could not be read)"
    return _bounded_start(_redacted(text), MAX_TEXT)


def stack_of(error: BaseException) -> str:
    """Return the traceback of an error, redacted; of a long one the end, where it happened."""
    try:
        text = "".join(traceback.format_exception(error, limit=-30, chain=True))
    except Exception:  # noqa: BLE001 - as above
        text = f"{error_type(error)} (its traceback could not be read)"
    text = _redacted(text)
    return text if len(text) <= MAX_STACK else "…" + text[-(MAX_STACK - 1) :]


def worker_name() -> str:
    """Return what tells this process from others: machine and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _redacted(text: str) -> str:
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    # Lone surrogates cannot be written as JSON.
    return text.encode("utf-8", "replace").decode("utf-8")


def _bounded_start(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"
