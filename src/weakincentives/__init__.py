"""Durable, typed mailboxes with SQS semantics for Python, and the loops that serve them."""

from weakincentives.runtime.mailbox.seam.backend import Backend
from weakincentives.version import __version__

__all__ = ["Backend", "__version__", "connect"]


def connect(url: str) -> Backend:
    """Open the place where messages live; changing the URL is all it takes to move.

    ``memory://`` for tests, ``sqlite:///file.db`` (durable, several processes, no server),
    ``redis://``, ``rediss://``, ``redis+sentinel://``, ``redis+cluster://``, ``sqs://region``.
    """
    from weakincentives.contrib.mailbox import urls

    return urls.connect(url)
