"""Ends jobs at their time limit.

An async job is cancelled. A plain one cannot be cancelled: it runs on, but counts as failed.
"""

import _thread
import asyncio
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.driver import run

from . import decide
from .attempt import ACKNOWLEDGED, INHERITED, Attempt
from .remembered_ids import RememberedIds
from .settle import OutcomeExecutor

__all__ = ["FINALLY_SECONDS", "LOOK_AGAIN_SECONDS", "TaskLimit", "TimeLimits"]

logger = get_logger(__name__)

LOOK_AGAIN_SECONDS = 0.1
"""How soon to check again a job that was sending its reply at its limit."""
FINALLY_SECONDS = 5.0
"""How long an async job may take to end after it was cancelled."""
LEAVE_SECONDS = 1.0
"""How long the end of a run waits for jobs that are being settled."""


class TimeLimits:
    """The running jobs of one worker, and the thread that settles those that take too long."""

    def __init__(self, seconds: float, executor: OutcomeExecutor) -> None:
        self.seconds = seconds
        self._executor = executor
        # The thread that removes an attempt settles it. Removing is atomic, so no lock is needed.
        self._running: dict[Attempt, None] = {}
        self._users: set[object] = set()
        self._lock = threading.Lock()
        self._asleep = _thread.allocate_lock()
        self._thread: threading.Thread | None = None

    def enter(self, user: object) -> None:
        """Keep the thread running until `leave`; raise if it cannot start."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._asleep = _thread.allocate_lock()
                self._asleep.acquire()
                thread = threading.Thread(
                    target=self._serve, args=(self._asleep,), name="time-limit", daemon=True
                )
                thread.start()
                self._thread = thread
            self._users.add(user)

    def leave(self, user: object) -> None:
        """Undo `enter`; the last one to leave ends the thread."""
        with self._lock:
            thread = self._thread
            if user not in self._users or thread is None:
                return
            self._users.discard(user)
            if self._users:
                return
            self._thread = None
            self._asleep.release()
        thread.join(LEAVE_SECONDS)

    def begin(self, attempt: Attempt) -> None:
        """Start the time limit of an attempt."""
        # No need to wake the thread: it never sleeps for longer than the time limit.
        attempt.limit = time.monotonic() + self.seconds
        self._running[attempt] = None

    def end(self, attempt: Attempt) -> bool:
        """Stop the time limit; False if another thread settles the attempt."""
        if attempt.limit is None:
            return True  # its time limit has not begun
        return self._running.pop(attempt, False) is None

    def _serve(self, asleep: _thread.LockType) -> None:
        sequels, pause = RememberedIds(), self.seconds
        while not asleep.acquire(timeout=max(0.0, min(pause, threading.TIMEOUT_MAX))):
            now, pause = time.monotonic(), self.seconds
            for attempt in list(self._running):
                if attempt.limit is not None and now < attempt.limit:
                    pause = min(pause, attempt.limit - now)
                elif attempt.is_replying:
                    pause = min(pause, LOOK_AGAIN_SECONDS)
                elif self.end(attempt) and attempt.state is not INHERITED:
                    self._fail(attempt, sequels)
                    pause = 0.0  # that may have taken long
            sequels.forget_some()
        sequels.forget_all()

    def _fail(self, attempt: Attempt, sequels: RememberedIds) -> None:
        taken = attempt.hand_over("time_limit")
        outcome = decide.at_time_limit(self.seconds)
        try:
            run(partial(self._executor.settle_entirely, taken, outcome))
            if taken.state is ACKNOWLEDGED:
                sequels.done(taken.sequels)
        except Exception:  # its lease runs out, and it is delivered again
            logger.exception("Message %s could not be settled", taken.message.id)
        finally:
            taken.lease.release()


class TaskLimit:
    """Cancels the task of a job at its time limit."""

    def __init__(
        self,
        attempt: Attempt,
        seconds: float,
        task: asyncio.Task[Any],
        overdue: Callable[[Attempt], None],
    ) -> None:
        """Start the time limit; ``overdue`` is called if a cancelled job still runs."""
        attempt.limit = time.monotonic() + seconds
        self._attempt = attempt
        self._overdue = overdue
        self._task = task
        self._loop = task.get_loop()
        self._timer = self._loop.call_later(seconds, self._cancel)

    def end(self) -> None:
        """Stop the time limit: the handler has ended."""
        self._timer.cancel()

    def _cancel(self) -> None:
        attempt = self._attempt
        if attempt.is_replying:  # cancelled now, the reply might be sent or not
            self._timer = self._loop.call_later(LOOK_AGAIN_SECONDS, self._cancel)
            return
        attempt.cancelled = attempt.cancelled or "time_limit"
        self._task.cancel()
        self._timer = self._loop.call_later(FINALLY_SECONDS, self._overdue, attempt)
