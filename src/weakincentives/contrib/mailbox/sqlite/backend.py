"""The backend of ``sqlite:///file.db``."""

from typing import Any
from urllib.parse import SplitResult, unquote

from weakincentives.contrib.mailbox.urls import max_bytes_of, options_of
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.errors import InvalidParameterError
from weakincentives.runtime.mailbox.queue_names import is_name
from weakincentives.runtime.mailbox.seam.backend import BaseBackend
from weakincentives.runtime.mailbox.seam.options import QueueOptions

from .database import Database
from .mailbox import SQLiteMailbox
from .pauses import SQLitePauseTable
from .queries import QUERIES
from .registry import shared_database
from .replies import SQLiteReplyStore
from .workers import SQLiteWorkerTable

__all__ = ["SQLiteBackend", "open_backend", "options_in", "path_of"]


logger = get_logger(__name__)


class SQLiteBackend(BaseBackend[SQLiteMailbox[Any, Any], SQLiteReplyStore[Any]]):
    """The queues of one file; other backends in this process may use the same file."""

    def __init__(self, database: Database, max_bytes: int | None = None) -> None:
        super().__init__(repr(database.path), SQLiteReplyStore(database), max_bytes)
        self._database = database

    def queues(self) -> list[str]:
        """List the queues of the file; names that no mailbox can have are left out and logged."""
        names = [name for (name,) in self._database.read(QUERIES["queues"])]
        known = [name for name in names if type(name) is str and is_name(name)]
        if len(known) < len(names):
            odd = [name for name in names if name not in known]
            logger.warning("%s: %d queues cannot be opened: %.200s", self, len(odd), odd)
        return known

    def _worker_table(self) -> SQLiteWorkerTable:
        return SQLiteWorkerTable(self._database)

    def _pause_table(self) -> SQLitePauseTable:
        return SQLitePauseTable(self._database)

    def _open(self, name: str, options: QueueOptions) -> SQLiteMailbox[Any, Any]:
        self._database.check_open()
        return SQLiteMailbox._opened(name, self._database, options)

    def _disconnect(self) -> None:
        self._database.close()  # its last user in this process closes the file


def open_backend(url: str, parts: SplitResult) -> SQLiteBackend:
    """Open ``sqlite:///relative.db[?durability=normal&max_bytes=N]`` or ``sqlite:////absolute.db``."""
    path = path_of(url, parts)
    durability, max_bytes = options_in(url, parts)
    return SQLiteBackend(shared_database(path, durability), max_bytes)


def options_in(url: str, parts: SplitResult) -> tuple[str, int | None]:
    """Return the ``durability`` and the ``max_bytes`` that a URL asks for."""
    if parts.fragment:
        raise InvalidParameterError(
            f"{url!r}: a ? or # in the name of a file is written %3F or %23"
        )
    options = options_of(url, parts.query, ("durability", "max_bytes"))
    max_bytes = max_bytes_of(options)
    return options.get("durability", "full"), max_bytes


def path_of(url: str, parts: SplitResult) -> str:
    """Return the file that a URL names."""
    if parts.netloc or not parts.path.startswith("/"):
        raise InvalidParameterError(
            f"{url!r}: write sqlite:///file.db for a file in the working directory, "
            "sqlite:////directory/file.db for any other"
        )
    path = unquote(parts.path[1:])
    if not path or "\0" in path:
        raise InvalidParameterError(f"{url!r} names no file; write sqlite:///file.db")
    return path
