"""From a URL to a Backend; what each scheme needs is imported only when it is asked for."""

import importlib
import re
from collections.abc import Callable
from urllib.parse import SplitResult, urlsplit

from weakincentives.runtime.mailbox.backend import Backend
from weakincentives.runtime.mailbox.errors import InvalidParameterError

__all__ = ["connect", "redacted"]

SECRET_OPTION = re.compile(
    r"([?&][^=&\s]*(?:password|secret|token)[^=&\s]*=)[^&\s]*", re.IGNORECASE
)

Opener = Callable[[str, SplitResult], Backend]

# scheme -> (module with `open_backend`, the extra that it needs)
SCHEMES = {
    "memory": ("weakincentives.contrib.mailbox.memory", None),
    "sqlite": ("weakincentives.contrib.mailbox.sqlite.backend", None),
    "redis": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "rediss": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "redis+sentinel": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "rediss+sentinel": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "redis+cluster": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "rediss+cluster": ("weakincentives.contrib.mailbox.redis.backend", "redis"),
    "sqs": ("weakincentives.contrib.mailbox.aws.backend", "aws"),
}


def connect(url: str) -> Backend:
    """Open the backend that a URL names.

    ``memory://``, ``sqlite:///file.db``, ``redis://host``, ``redis+sentinel://h1,h2/master/0``,
    ``redis+cluster://host:port`` or ``sqs://region``.
    """
    scheme = url.partition("://")[0].lower() if isinstance(url, str) and "://" in url else ""
    if scheme not in SCHEMES:
        raise InvalidParameterError(
            f"{redacted(str(url))!r} is no URL that weakincentives knows; "
            f"it begins with one of {', '.join(f'{known}://' for known in SCHEMES)}"
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
    return open_backend(url, urlsplit(url))


def redacted(url: str) -> str:
    """Return the URL without its user, its password and whatever option tells a secret."""
    # A password may hold an unquoted / or @: rather hide too much of what is no valid URL.
    hidden = re.sub(r"(?<=://)[^/\s]\S*@", "***@", url)
    return SECRET_OPTION.sub(r"\1***", hidden)
