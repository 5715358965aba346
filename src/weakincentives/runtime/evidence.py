"""What is kept of an error: enough to find the cause, without secrets, and bounded."""

import os
import re
import socket
import traceback

__all__ = ["described", "error_type", "stack_of", "worker_name"]

MAX_TEXT = 2_000
MAX_STACK = 8_000

# Every repetition is bounded: the text is anybody's, and its length must not become time.
_SECRETS = (
    # user:password@ in a URL
    (re.compile(r"(?<=://)[^/@\s'\"]{0,200}@"), "***@"),
    # password=…, "api_key": "…", Authorization: Bearer …
    (
        re.compile(
            r"(?i)((?:password|passwd|secret|token|api[_-]?key|credential|authorization)"
            r"[\w-]{0,20}[\"']?\s{0,3}[:=]\s{0,3}(?:bearer\s|basic\s)?)"
            r"(?:\"[^\"]{0,500}\"|'[^']{0,500}'|[^\s,;&\"']{1,500})"
        ),
        r"\1***",
    ),
    (re.compile(r"(?i)\b(bearer\s)[\w.~+/-]{8,500}={0,2}"), r"\1***"),
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
    # Cut twice: first so that a huge text costs nothing, then because a secret may have been cut.
    return _start(_redacted(_start(text, 2 * MAX_TEXT)), MAX_TEXT)


def stack_of(error: BaseException) -> str:
    """Return the traceback of an error, redacted; of a long one the end, where it happened."""
    try:
        text = "".join(traceback.format_exception(error, limit=-30, chain=True))
    except Exception:  # noqa: BLE001 - as above
        text = f"{error_type(error)} (its traceback could not be read)"
    return _end(_redacted(_end(text, 2 * MAX_STACK)), MAX_STACK)


def worker_name() -> str:
    """Return what tells this process from others: machine and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _redacted(text: str) -> str:
    for secret, instead in _SECRETS:
        text = secret.sub(instead, text)
    # Lone surrogates cannot be written as JSON.
    return text.encode("utf-8", "replace").decode("utf-8")


def _start(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _end(text: str, limit: int) -> str:
    return text if len(text) <= limit else "…" + text[1 - limit :]
