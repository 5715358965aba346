"""Pauses a worker whose process has no file handle or thread left, and ends it if that lasts.

A message is not to blame for that, unless it happens again and again: a job that meets such a
shortage counts as crashed, so that one that uses everything up ends in the dead letters.
"""

import _thread
import errno
import os
import time
from collections.abc import Iterator

from weakincentives.logs import get_logger

from . import decide
from .attempt import ACKNOWLEDGED, UNREAD, Attempt

__all__ = ["LOOK_SECONDS", "Shortage", "is_shortage"]

logger = get_logger(__name__)

LOOK_SECONDS = 0.5
"""How often to look whether a file can be opened again."""
GIVE_UP_SECONDS = 30.0
"""How long to look for that."""

NO_HANDLE = {errno.EMFILE, errno.ENFILE}
NO_THREAD = "can't start new thread"
LONGEST_CHAIN = 100


def is_shortage(error: BaseException) -> bool:
    """Return whether an error, or one that led to it, says that no handle or thread was left."""
    return any(
        (isinstance(one, OSError) and one.errno in NO_HANDLE)
        or (isinstance(one, RuntimeError) and one.args == (NO_THREAD,))
        for one in _chain(error)
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and what led to it; a chain can be a ring."""
    seen: dict[int, BaseException] = {}
    waiting = [error]
    while waiting and len(seen) < LONGEST_CHAIN:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        yield one
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
        waiting += filter(None, (one.__cause__, one.__context__))


class Shortage:
    """What a worker's process is short of, if anything; all threads of the worker share it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.error: BaseException | None = None
        """What said so first; None if nothing is short."""
        self._since = 0.0
        self._looked_at = 0.0

    def met(self, error: BaseException) -> None:
        """Record an error that shows that file handles or threads have run out; log the first."""
        if self.error is None:
            self._since = self._looked_at = time.monotonic()
            self.error = error
            logger.error(
                "%s: this process has no file handle or thread left, so no job is taken: %s",
                self._name,
                error,
                extra={"mailbox": self._name},
            )

    def after_error(self, attempt: Attempt, error: BaseException) -> decide.Crash | decide.Fail:
        """Return what is to be done after a handler has raised."""
        if is_shortage(error) and attempt.state is not ACKNOWLEDGED:
            self.met(error)
            return decide.CRASH
        return decide.Fail(error, readable=attempt.body is not UNREAD)

    def lasts(self) -> bool:
        """Return whether there is still a shortage; looks now and then."""
        if self.error is None:
            return False
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return True
        self._looked_at = now
        if not _is_over():
            return True
        self.error = None
        logger.info("%s: jobs are taken again", self._name, extra={"mailbox": self._name})
        return False

    def is_hopeless(self) -> bool:
        """Return whether it has lasted for so long that the worker should end with its error."""
        return self.error is not None and time.monotonic() - self._since >= GIVE_UP_SECONDS


def _is_over() -> bool:
    """Return whether a file can be opened and a thread started."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
        _thread.start_new_thread(int, ())
    except (OSError, RuntimeError):
        return False
    return True
