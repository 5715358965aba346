"""Wakes waiters: in this process with a bell, in other processes through a file that they watch."""

import _thread
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.errors import MailboxError
from weakincentives.runtime.mailbox.seam.forks import take_locks
from weakincentives.runtime.mailbox.seam.waiting import Bell

from .inotify import CommitSignal

__all__ = ["Key", "ReplyBell", "Wake"]

logger = get_logger(__name__)

Key: TypeAlias = tuple[str, str]
"""A query that counts what a consumer waits for, or tells the state of a reply; its argument."""

# The thread stays for a while, so that repeated short receives do not restart it each time.
LINGER = 2.0


class ReplyBell(Bell):
    """Wakes all who wait for news of one reply."""

    _seen = 0

    def ring(self, times: int = 1) -> None:
        """Wake everybody."""
        self.ring_all()

    def found(self, state: int) -> None:
        """Wake everybody if the state of the reply, as its query tells it, is another one now."""
        if state != self._seen:
            self._seen = state
            self.ring_all()


class Wake:
    """The bells of one database, and the one thread that listens for other processes."""

    def __init__(
        self,
        path: str,
        look: weakref.WeakMethod[Callable[[Iterable[Key]], Iterable[tuple[Key, int]]]],
        make_signal: weakref.WeakMethod[Callable[[], CommitSignal]],
    ) -> None:
        self._path = path
        self._look = look
        self._make_signal = make_signal
        # Reentrant, because a signal handler may interrupt a holder in its own thread. The holder
        # takes no other lock.
        self._lock = threading.RLock()
        self._bells: dict[Key, tuple[Bell, int]] = {}
        self._file: int | None = None
        self._watch: Watch | None = None
        self._closed = False

    def join(self, key: Key, make_bell: Callable[[], Bell] = Bell) -> Bell:
        """Return the bell that rings for this key, from now on; `leave` it in the end."""
        with self._lock:
            bell, listeners = self._bells.get(key, (None, 0))
            bell = bell or make_bell()
            self._bells[key] = (bell, listeners + 1)
            make_signal = self._make_signal()
            if self._watch is None and not self._closed and make_signal is not None:
                self._watch = _watching(make_signal(), self._heard, self._idle)
            return bell

    def leave(self, key: Key) -> None:
        """Stop listening."""
        with self._lock:
            bell, listeners = self._bells.pop(key, (None, 0))
            if bell is not None and listeners > 1:
                self._bells[key] = (bell, listeners - 1)

    def notify(self, key: Key, times: int) -> None:
        """Wake the consumers of this key in all processes, after the commit."""
        entry = self._bells.get(key)
        if entry is not None:
            entry[0].ring(times)
        file = self._file
        if file is None:
            file = self._open()
        try:
            os.pread(file, 1, 0)
        except OSError:
            pass  # waiters also look by themselves, and a step must not fail after its commit

    def ring_all(self) -> None:
        """Wake all waiters in this process, so that they look again."""
        with self._lock:
            bells = [bell for bell, _ in self._bells.values()]
        for bell in bells:
            bell.ring_all()

    def close(self) -> None:
        """Wake all waiters, stop the thread and close the file."""
        with self._lock:
            self._closed = True
            watch, self._watch = self._watch, None
            file, self._file = self._file, None
        self.ring_all()
        if watch is not None:
            watch.stop()
        if file is not None:
            os.close(file)

    def retire(self) -> None:
        """Tell the thread to end, without waiting for it or taking a lock."""
        self._closed = True
        watch = self._watch
        if watch is not None:
            watch.retire()

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def before_fork(self, taken: list[Any]) -> None:
        """Take the lock, so that no thread opens a file that the child would inherit unnoticed."""
        take_locks(taken, self._lock)

    def abandon(self) -> None:
        """In a forked child: close the files inherited from the parent; it has no thread."""
        if self._watch is not None:
            self._watch.signal.close()
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _open(self) -> int:
        with self._lock:
            if self._closed:
                return -1
            if self._file is None:
                try:
                    self._file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
                except OSError:
                    return -1
            return self._file

    def _heard(self) -> None:
        with self._lock:
            keys = list(self._bells)
        look = self._look()
        if not keys or look is None:
            return
        try:
            found = look(keys)
        except MailboxError as error:
            logger.warning("waiters could not be woken, and will look by themselves: %s", error)
            return
        for key, count in found:
            entry = self._bells.get(key)
            if entry is not None and isinstance(entry[0], ReplyBell):
                entry[0].found(count)
            elif entry is not None:
                entry[0].ring(count)

    def _idle(self, watch: "Watch") -> bool:
        """Return whether the thread may end, because there are no waiters."""
        with self._lock:
            if self._bells and self._watch is watch:
                return False
            if self._watch is watch:
                self._watch = None
            return True


class Watch:
    """A thread that waits for a `CommitSignal` and passes it on."""

    def __init__(
        self, signal: CommitSignal, heard: Callable[[], None], idle: Callable[["Watch"], bool]
    ) -> None:
        self.signal = signal
        self._heard = heard
        self._idle = idle
        self._stopped = False
        # Not a `Thread`: if a signal handler raises in its start(), that is left half done. The
        # lock is released when the thread ends.
        self._ended = _thread.allocate_lock()
        self._ended.acquire()
        self._ident = _thread.start_new_thread(self._run, ())

    def retire(self) -> None:
        """Tell the thread to end after its current wait."""
        self._stopped = True

    def stop(self) -> None:
        """End the thread, and wait until it has ended."""
        self.retire()
        self.signal.interrupt()
        # While the interpreter shuts down, threads no longer run, so waiting would hang.
        if threading.get_ident() != self._ident and not sys.is_finalizing():
            with self._ended:
                pass

    def _run(self) -> None:
        try:
            self._listen()
        finally:
            self.signal.close()
            self._ended.release()

    def _listen(self) -> None:
        busy_until = time.monotonic() + LINGER
        while not self._stopped:
            if self.signal.wait(LINGER) and not self._stopped:
                self._heard()
            now = time.monotonic()
            if now >= busy_until:
                if self._idle(self):
                    return
                busy_until = now + LINGER


def _watching(
    signal: CommitSignal, heard: Callable[[], None], idle: Callable[[Watch], bool]
) -> Watch | None:
    """Start the thread; None if the process cannot start one: waiters then look by themselves."""
    try:
        return Watch(signal, heard, idle)
    except RuntimeError:
        signal.close()
        return None
