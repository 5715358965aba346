"""Notices that another process has committed: by inotify, or by polling."""

import ctypes
import errno
import os
import select
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Protocol

__all__ = ["CommitSignal", "InotifySignal", "PollingSignal", "best_signal"]

IN_ACCESS = 0x1
EVENT = struct.Struct("iIII")
FIRST_POLL, LAST_POLL = 0.001, 0.05


class CommitSignal(Protocol):
    """The sign of a commit by another process, which one thread can wait for."""

    def wait(self, timeout: float) -> bool:
        """Wait for a commit of another process; False if none came in time."""
        ...

    def interrupt(self) -> None:
        """End the wait in progress or the next one; from any thread."""
        ...

    def close(self) -> None:
        """Close the files."""
        ...


class InotifySignal:
    """Notices through inotify that another process has read the wake file.

    Reading, not writing: a write would dirty the inode at every send.
    """

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = _checked(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
        try:
            _checked(libc.inotify_add_watch(self._inotify, os.fsencode(path), IN_ACCESS))
            self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        except OSError:
            os.close(self._inotify)
            raise
        self._lock = threading.Lock()
        self._closed = False
        self._poll = select.poll()
        self._poll.register(self._inotify, select.POLLIN)
        self._poll.register(self._stop, select.POLLIN)

    def wait(self, timeout: float) -> bool:
        """Wait for an event, and consume all that have arrived."""
        ready = self._poll.poll(timeout * 1000)
        if not any(file == self._inotify for file, _ in ready):
            return False
        try:
            os.read(self._inotify, 64 * EVENT.size)
        except BlockingIOError:
            pass
        return True

    def interrupt(self) -> None:
        """Wake the thread that waits."""
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._stop, 1)

    def close(self) -> None:
        """Close both files."""
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._inotify)
                os.close(self._stop)


class PollingSignal:
    """Polls SQLite's ``data_version``, less and less often while nothing happens."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        # Not read here: the caller holds a lock under which the file must not be read. The first
        # value counts as a change, so that nothing that arrives meanwhile is missed.
        self._seen: int | None = None
        self._pause = FIRST_POLL
        self._stop = threading.Event()

    def wait(self, timeout: float) -> bool:
        """Poll until the version changes."""
        deadline = time.monotonic() + timeout
        while not self._stop.is_set():
            version = self._version()
            if version != self._seen:
                self._seen = version
                self._pause = FIRST_POLL
                return True
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            self._stop.wait(min(self._pause, remaining))
            self._pause = min(self._pause * 1.5, LAST_POLL)
        return False

    def interrupt(self) -> None:
        """Wake the thread that waits."""
        self._stop.set()

    def close(self) -> None:
        """Nothing is held."""


def best_signal(path: str, version: Callable[[], int]) -> CommitSignal:
    """Return an `InotifySignal`, or a `PollingSignal` if inotify is not available."""
    if sys.platform == "linux":
        try:
            return InotifySignal(path)
        except OSError:
            pass  # fs.inotify.max_user_instances is used up, or the kernel has none
    return PollingSignal(version)


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno() or errno.EIO
        raise OSError(number, os.strerror(number))
    return result
