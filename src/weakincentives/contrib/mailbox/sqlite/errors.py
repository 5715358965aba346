"""Translates SQLite's errors into mailbox errors."""

import errno

import apsw

from weakincentives.runtime.mailbox.errors import MailboxConnectionError, MailboxError, NoRoomError

__all__ = ["translated"]

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def translated(error: apsw.Error, path: str, system_errno: int = 0) -> MailboxError:
    """Return the mailbox error for an error of SQLite."""
    if isinstance(error, apsw.FullError) or (
        isinstance(error, apsw.IOError) and system_errno in NO_ROOM
    ):
        return NoRoomError(
            f"there is no room on the disk for {path}; nothing was written, "
            "and it works again as soon as there is room"
        )
    return MailboxConnectionError(_reason(error, path))


def _reason(error: apsw.Error, path: str) -> str:
    if isinstance(error, apsw.BusyError):
        return f"{path} was locked by other processes for 30 seconds; try again"
    if isinstance(error, apsw.NotADBError):
        return f"{path} is not a SQLite database; nothing was changed, choose another file"
    if isinstance(error, apsw.CorruptError):
        return f"{path} is damaged ({error}); restore it from a copy, or use .recover of sqlite3"
    if isinstance(error, apsw.ReadOnlyError):
        return f"{path} cannot be written (is it, or its directory, read-only?)"
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError):
        return f"{path} cannot be opened (check its permissions and those of its directory)"
    return f"{path}: {error}"
