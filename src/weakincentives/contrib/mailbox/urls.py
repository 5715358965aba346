"""Opens the backend that a URL names; a backend's packages are imported only when needed."""

import importlib
import re
from collections.abc import Callable, Iterable
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.limits import check_max_bytes
from weakincentives.runtime.mailbox.seam.backend import Backend

__all__ = ["SECRET_OPTION", "connect", "max_bytes_of", "options_of", "redacted", "split_url"]

BAD_ESCAPE = re.compile("%(?![0-9A-Fa-f]{2})")
CONTROL = re.compile(r"[\x00-\x1f\x7f]")

SECRET_OPTION = re.compile(
    r"([?&][^=&\s]*(?:password|secret|token)[^=&\s]*=)[^&\s]*", re.IGNORECASE
)

Opener = Callable[[str, SplitResult], Backend]

# scheme -> (module with `open_backend`, the extra that it needs)
SCHEMES = {
    "memory": ("weakincentives.runtime.mailbox.memory.backend", None),
    "sqlite": ("weakincentives.contrib.mailbox.sqlite.backend", None),
    "redis": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "rediss": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "redis+sentinel": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "rediss+sentinel": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "redis+cluster": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "rediss+cluster": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "sqs": ("weakincentives.contrib.mailbox.sqs.backend", "aws"),
}


def connect(url: str) -> Backend:
    """Open the backend that a URL names.

    ``memory://``, ``sqlite:///file.db``, ``redis://host``, ``redis+sentinel://h1,h2/master/0``,
    ``redis+cluster://host:port`` or ``sqs://region``.
    """
    scheme = url.partition("://")[0].lower() if isinstance(url, str) and "://" in url else ""
    if scheme not in SCHEMES:
        raise InvalidParameterError(
            f"{redacted(str(url))!r} is not a URL that weakincentives supports; "
            f"use one of {', '.join(f'{known}://' for known in SCHEMES)}"
        )
    module_name, extra = SCHEMES[scheme]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if extra is None or (error.name or "").startswith("weakincentives"):
            raise
        raise InvalidParameterError(
            f"{scheme}:// needs the package {error.name}: pip install 'weakincentives[{extra}]'"
        ) from error
    open_backend: Opener = module.open_backend
    return open_backend(url, split_url(url))


def options_of(url: str, query: str, known: Iterable[str]) -> dict[str, str]:
    """Return the options after the ``?``; raise if one is unknown, repeated or has no value."""
    known = sorted(known)
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in known:
            raise InvalidParameterError(
                f"{redacted(url)!r}: there is no option {name!r:.100}; "
                f"the options here are {', '.join(known)}"
            )
        if name in options or not value:
            raise InvalidParameterError(
                f"{redacted(url)!r}: give the option {name} once, with a value: {name}=..."
            )
        options[name] = value
    return options


def max_bytes_of(options: dict[str, str]) -> int | None:
    """Remove ``max_bytes`` from a URL's options and return it; None if it is not set."""
    if "max_bytes" not in options:
        return None
    value = options.pop("max_bytes")
    return check_max_bytes(int(value) if value.isascii() and value.isdigit() else value)


def split_url(url: str) -> SplitResult:
    """Split a URL; raise `InvalidParameterError` if it is malformed."""
    if CONTROL.search(url):
        raise InvalidParameterError(f"{redacted(url)!r}: a URL must not contain control characters")
    try:
        if BAD_ESCAPE.search(url):
            raise ValueError("write a literal % as %25")
        unquote(url, errors="strict").encode()
        return urlsplit(url)
    except ValueError as error:
        raise InvalidParameterError(f"{redacted(url)!r}: {error}") from error


def redacted(url: str) -> str:
    """Return the URL with its user, its password and secret options replaced by ``***``."""
    # A password may contain an unquoted / or @, so in an invalid URL this hides too much rather
    # than too little.
    hidden = re.sub(r"(?<=://)[^/\s]\S*@", "***@", url)
    return SECRET_OPTION.sub(r"\1***", hidden)
