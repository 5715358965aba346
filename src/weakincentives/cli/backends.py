"""Backends for the commands; a command that only reads, or fails, creates no file or queue."""

from pathlib import Path
from typing import Any

import weakincentives
from weakincentives.contrib.mailbox.sqlite.backend import options_in, path_of
from weakincentives.contrib.mailbox.urls import split_url
from weakincentives.runtime.mailbox import (
    InMemoryMailbox,
    InvalidParameterError,
    Peeked,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.runtime.mailbox.seam.driver import run

__all__ = [
    "absence_of",
    "connect_existing",
    "is_in_memory",
    "newest_messages",
    "rehearsal_of",
    "scheme_of",
    "store_mailbox",
]


def connect_existing(url: str) -> Backend:
    """Open the backend of a URL; raise if its file does not exist, instead of creating it."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() == "sqlite":
        _check_file(Path(path_of(url, split_url(url))))
    elif scheme.lower() == "sqs":
        # ``create=`` is for senders: a missing queue has nothing to show.
        place, mark, options = rest.partition("?")
        kept = "&".join(part for part in options.split("&") if not part.startswith("create="))
        url = f"{scheme}://{place}{mark}{kept}"
    return weakincentives.connect(url)


def absence_of(url: str, backend: Backend, queue: str) -> str | None:
    """Return a text that says that the queue does not exist, or may not; None if it does."""
    scheme = scheme_of(url)
    if scheme == "sqs":  # which refuses to open a queue that does not exist
        return None
    names = backend.queues() if scheme in ("sqlite", "memory") else None
    mailbox = backend.mailbox(queue)  # raises for a bad name
    if names is not None:
        return None if queue in names else f"there is no queue {queue!r} here"
    if mailbox.approximate_count():
        return None
    return f"no messages in {queue!r} (there may be no such queue)"


def store_mailbox(backend: Backend, queue: str) -> StoreMailbox[Any, Any]:
    """Open a mailbox whose store can be walked over; every backend of this package has them."""
    mailbox = backend.mailbox(queue)
    if not isinstance(mailbox, StoreMailbox):
        raise UnsupportedOperationError(f"{queue!r} is not a mailbox of this package")
    return mailbox


def newest_messages(
    box: StoreMailbox[Any, Any], count: int, pending: int
) -> list[Peeked[Any]] | None:
    """Return the last of the pending messages; None if the backend cannot show them."""
    if not box.capabilities.peeks:
        return None
    seen = run(lambda: box.store.peek(count, max(pending - count, 0))) if pending else ()
    return [Peeked(box, one) for one in seen]


def is_in_memory(url: str) -> bool:
    """Return whether messages exist only in the memory of this process."""
    return scheme_of(url) == "memory"


def scheme_of(url: str) -> str:
    """Return the part of a URL that says what kind of backend it names."""
    return url.partition("://")[0].lower()


def rehearsal_of(url: str, queue: str) -> InMemoryMailbox[Any, Any] | None:
    """Return a mailbox that refuses the same messages; None if connecting creates no file."""
    if scheme_of(url) != "sqlite":
        return None
    _, max_bytes = options_in(url, split_url(url))
    return InMemoryMailbox(queue, serialize=True, max_bytes=max_bytes)


def _check_file(path: Path) -> None:
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        if not path.parent.is_dir():
            raise InvalidParameterError(f"there is no directory {path.parent}") from error
        raise InvalidParameterError(
            f"there is no file {path}; sending the first message creates it"
        ) from error
    except OSError as error:
        raise InvalidParameterError(f"{path} cannot be read: {error.strerror or error}") from error
    if size == 0:
        raise InvalidParameterError(
            f"{path} is empty; sending the first message makes it a database"
        )
