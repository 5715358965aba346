"""Handles SIGTERM and SIGINT: the handler only queues the signal, and a thread does the rest."""

import _thread
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from types import FrameType
from typing import Any, ClassVar

from weakincentives.errors import WinkError
from weakincentives.logs import get_logger

__all__ = ["ShutdownCoordinator", "SignalsUnavailableError"]

logger = get_logger(__name__)

SIGNAL_CHECK_SECONDS = 0.5
"""How often a waiting thread returns to Python code, which is when signal handlers run."""

SAME_SIGNAL_SECONDS = 0.5
"""How long after a signal another one counts as the same. coreutils' `timeout`, a terminal and some
supervisors signal the process and then its whole group, so that one order to stop arrives twice;
whoever loses patience takes longer than this."""
LAST_LINE_SECONDS = 0.5
"""How long the process waits for its last log line before a second signal ends it."""

Callback = Callable[[], object]


class SignalsUnavailableError(WinkError):
    """Signal handlers can only be set in the main thread; call install() there first."""


class ShutdownCoordinator:
    """Calls the registered callbacks when SIGTERM or SIGINT arrives.

    ``install()`` returns the one coordinator of this process. Each callback runs in its own
    thread, so that a slow one does not delay the others; the process does not exit before they
    are done. A callback that is registered after the signal is called at once. A second signal
    ends the process immediately, if it comes half a second later or more.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _installed: ClassVar["ShutdownCoordinator | None"] = None

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._signals = tuple(signals)
        self._pid = os.getpid()
        self._users = 0
        self._previous: dict[signal.Signals, Any] = {}
        # SimpleQueue is reentrant: a signal handler may use it even if it interrupted a put().
        self._arrived: SimpleQueue[int | None] = SimpleQueue()
        self._first_at: float | None = None
        # A plain lock: unlike an `Event`, a signal handler may use it whatever it interrupted.
        self._last_line = _thread.allocate_lock()
        self._last_line.acquire()
        self._requested = threading.Event()
        self._callbacks: list[Callback] = []
        self._guard = threading.RLock()

    @classmethod
    def install(
        cls, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    ) -> "ShutdownCoordinator":
        """Set the signal handlers, or return the installed coordinator; undo with `uninstall`."""
        with cls._lock:
            coordinator = cls._installed
            # A coordinator inherited through a fork has no thread.
            if coordinator is None or coordinator._pid != os.getpid():
                coordinator = cls(signals)
                coordinator._set_handlers()
                cls._installed = coordinator
            coordinator._users += 1
            return coordinator

    def uninstall(self) -> None:
        """Undo one `install`; the last one restores the previous handlers."""
        with self._lock:
            if self._users == 0:
                return
            if self._users == 1:
                self._restore()
                self._arrived.put(None)
                if ShutdownCoordinator._installed is self:
                    ShutdownCoordinator._installed = None
            self._users -= 1

    @property
    def requested(self) -> bool:
        """Whether a signal has arrived."""
        return self._requested.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a signal; return False if none arrived in time."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # In short waits: a signal that arrives just before the wait, or in another thread, does
        # not interrupt it, and its handler runs only afterwards.
        while not self._requested.wait(
            min(SIGNAL_CHECK_SECONDS, max(0.0, deadline - time.monotonic()))
        ):
            if time.monotonic() >= deadline:
                return False
        return True

    def register(self, callback: Callback) -> None:
        """Call ``callback`` when a signal arrives, or at once if one has arrived already."""
        with self._guard:
            self._callbacks.append(callback)
            if self._requested.is_set():
                self._call(callback)

    def unregister(self, callback: Callback) -> bool:
        """Undo one `register`; return False if there was none."""
        with self._guard:
            if callback not in self._callbacks:
                return False
            self._callbacks.remove(callback)
            return True

    def _set_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SignalsUnavailableError
        for number in self._signals:
            # Keep ignoring a signal that is ignored, such as SIGINT in a shell's background job.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        threading.Thread(target=self._serve, name="shutdown-coordinator", daemon=True).start()

    def _restore(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SignalsUnavailableError(
                "signal handlers can only be put back in the main thread; call uninstall() there"
            )
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked child has no coordinator thread, so it gets the default behaviour.
            self._restore()
            os.kill(os.getpid(), number)
            return
        now = time.monotonic()
        if self._first_at is None:
            self._first_at = now
            self._arrived.put(number)
        elif now - self._first_at >= SAME_SIGNAL_SECONDS:
            self._end(number)

    def _end(self, number: int) -> None:
        """End the process by this signal, after a log line if that can be written soon."""
        for handled in self._previous:
            # From now on the operating system ends the process, whatever Python is doing.
            signal.signal(handled, signal.SIG_DFL)
        # By the other thread: this one may have been interrupted while it held a lock of the log.
        self._arrived.put(number)
        self._last_line.acquire(timeout=LAST_LINE_SECONDS)
        os.kill(os.getpid(), number)

    def _serve(self) -> None:
        """Wait for the first signal and call the callbacks; log the second one."""
        number = self._arrived.get()
        if number is None:
            return
        logger.info("%s: shutting down; a second signal ends at once", signal.Signals(number).name)
        self._run_callbacks()
        number = self._arrived.get()
        if number is None:
            return
        logger.warning("%s again: the process ends at once", signal.Signals(number).name)
        self._last_line.release()

    def _run_callbacks(self) -> None:
        with self._guard:
            for callback in self._callbacks:
                self._call(callback)
            # Last, so that a thread that waits for the signal and then exits cannot exit before
            # the callbacks have started.
            self._requested.set()

    def _call(self, callback: Callback) -> None:
        def call() -> None:
            try:
                callback()
            except Exception:
                logger.exception("a shutdown callback failed: %s", callback)

        try:
            threading.Thread(target=call, name="shutdown-callback", daemon=False).start()
        except RuntimeError:
            call()  # no thread can be started, so callbacks run one after another
