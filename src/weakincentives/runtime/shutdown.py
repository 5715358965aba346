"""Signals, made harmless: a handler sets a flag, a thread of its own does the rest."""

import logging
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

__all__ = ["ShutdownCoordinator", "SignalsUnavailableError"]

logger = logging.getLogger(__name__)

HEARING = 0.5
"""Seconds after which a signal is heard at the latest."""

Callback = Callable[[], object]


class SignalsUnavailableError(WinkError):
    """Signal handlers can only be set in the main thread; call install() there first."""


class ShutdownCoordinator:
    """Calls what was registered once SIGTERM or SIGINT arrives; a second signal ends at once.

    ``install()`` returns the one coordinator of this process. Each callback runs in a thread of
    its own, so that a slow one delays nobody; the process does not exit before they are done. A
    callback registered after the signal is called right away.
    """

    _lock: ClassVar[threading.Lock] = threading.Lock()
    _installed: ClassVar["ShutdownCoordinator | None"] = None

    def __init__(self, signals: Iterable[signal.Signals]) -> None:
        self._signals = tuple(signals)
        self._pid = os.getpid()
        self._users = 0
        self._previous: dict[signal.Signals, Any] = {}
        # The one queue that may be used where a signal interrupted it.
        self._arrived: SimpleQueue[int | None] = SimpleQueue()
        self._told = threading.Event()
        self._callbacks: list[Callback] = []
        self._guard = threading.RLock()

    @classmethod
    def install(
        cls, signals: Iterable[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
    ) -> "ShutdownCoordinator":
        """Set the handlers, or return the coordinator that has; undo it with `uninstall`."""
        with cls._lock:
            coordinator = cls._installed
            # What a fork inherited has no thread behind it.
            if coordinator is None or coordinator._pid != os.getpid():
                coordinator = cls(signals)
                coordinator._set_handlers()
                cls._installed = coordinator
            coordinator._users += 1
            return coordinator

    def uninstall(self) -> None:
        """Undo one `install`; the last one puts the previous handlers back."""
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
        return self._told.is_set()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a signal; False if none came in time."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        # In pieces: a signal that arrives while this thread is about to wait, or in another
        # thread, does not end the wait, and is heard after it.
        while not self._told.wait(min(HEARING, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
        return True

    def register(self, callback: Callback) -> None:
        """Have ``callback`` called when a signal arrives, at once if one has."""
        with self._guard:
            self._callbacks.append(callback)
            if self._told.is_set():
                self._call(callback)

    def unregister(self, callback: Callback) -> bool:
        """Undo one `register`; False if there was none."""
        with self._guard:
            if callback not in self._callbacks:
                return False
            self._callbacks.remove(callback)
            return True

    def _set_handlers(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SignalsUnavailableError
        for number in self._signals:
            # A signal that is ignored, as SIGINT in a shell's background job, stays ignored.
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._on_signal)
        threading.Thread(target=self._tell, name="shutdown-coordinator", daemon=True).start()

    def _restore(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise SignalsUnavailableError(
                "signal handlers can only be put back in the main thread; call uninstall() there"
            )
        for number, previous in self._previous.items():
            signal.signal(number, signal.SIG_DFL if previous is None else previous)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._pid:
            # A forked child has no thread that listens: it dies of the signal as it would have.
            self._restore()
            os.kill(os.getpid(), number)
            return
        for handled in self._previous:
            # The system itself ends the process on the second one, whatever Python is doing.
            signal.signal(handled, signal.SIG_DFL)
        self._arrived.put(number)

    def _tell(self) -> None:
        number = self._arrived.get()
        if number is None:
            return
        logger.info("%s: shutting down; a second signal ends at once", signal.Signals(number).name)
        with self._guard:
            for callback in self._callbacks:
                self._call(callback)
            # Last, so that whoever waits for it and then exits does not outrun a callback.
            self._told.set()

    def _call(self, callback: Callback) -> None:
        def call() -> None:
            try:
                callback()
            except Exception:
                logger.exception("a shutdown callback failed: %r", callback)

        try:
            threading.Thread(target=call, name="shutdown-callback", daemon=False).start()
        except RuntimeError:
            call()  # no thread is left: late is better than never
