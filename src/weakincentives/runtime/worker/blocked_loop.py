"""Reports an event loop that a job blocks, with the stack of what blocks it."""

import asyncio
import os
import sys
import threading
import time
import traceback

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.seam.waiting import call_soon

__all__ = ["LOOP_WATCH", "LoopWatch", "WatchedLoop"]

logger = get_logger(__name__)

BLOCKED_SECONDS = 1.0
"""A loop that does not answer for this many seconds is reported."""
LOOK_SECONDS = 0.5
FRAMES = 20
"""How much of the stack the report shows."""


class WatchedLoop:
    """One event loop, which is asked for a sign of life at regular intervals."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._asked_at: float | None = None
        self._looked_at = time.monotonic()
        self._is_reported = False
        self._lag = 0.0

    @property
    def lag(self) -> float:
        """How many seconds the loop took for its last sign of life, or has taken so far."""
        asked = self._asked_at
        return self._lag if asked is None else max(self._lag, time.monotonic() - asked)

    def look(self) -> None:
        """Ask the loop, or report it if it has not answered for too long."""
        now, late = time.monotonic(), self._looked_at + 4 * LOOK_SECONDS
        self._looked_at = now
        if self._asked_at is None or now > late:  # late: the whole process was stopped
            self._asked_at = now
            call_soon(self._loop, self._answer)
        elif now - self._asked_at >= BLOCKED_SECONDS and not self._is_reported:
            self._is_reported = True
            self._report(now - self._asked_at)

    def _answer(self) -> None:
        asked, self._asked_at = self._asked_at, None
        seconds = 0.0 if asked is None else time.monotonic() - asked
        self._lag = seconds
        if self._is_reported and asked is not None:
            logger.warning(
                "%s: the event loop runs again; it was blocked for %.1f s",
                self._name,
                seconds,
                extra={"mailbox": self._name, "seconds": round(seconds, 1)},
            )
        self._is_reported = False

    def _report(self, seconds: float) -> None:
        frame = sys._current_frames().get(self._thread)
        stack = "".join(traceback.format_stack(frame)[-FRAMES:]) if frame is not None else ""
        logger.warning(
            "%s: the event loop has been blocked for %.1f s, and no other job can run. Await "
            "slow calls, or make them in asyncio.to_thread. It is blocked here:\n%s",
            self._name,
            seconds,
            stack,
            extra={"mailbox": self._name, "stack": stack},
        )


class LoopWatch:
    """Watches all event loops of workers, from one thread that runs while there are any."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the loops and the thread, as a forked child must."""
        self._lock = threading.Lock()
        self._watched: dict[WatchedLoop, None] = {}
        self._thread: threading.Thread | None = None

    def watch(self, name: str) -> WatchedLoop:
        """Watch the running event loop until `unwatch`."""
        watched = WatchedLoop(name)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="loop-watch", daemon=True)
                thread.start()
                self._thread = thread
            self._watched[watched] = None
        return watched

    def unwatch(self, watched: WatchedLoop) -> None:
        """Stop watching a loop."""
        self._watched.pop(watched, None)

    def _run(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            with self._lock:
                if not self._watched:
                    self._thread = None
                    return
                watched = list(self._watched)
            for one in watched:
                try:
                    one.look()
                except Exception:
                    logger.exception("an event loop could not be watched")


# One for the process, so that the number of threads does not grow with the loops.
LOOP_WATCH = LoopWatch()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=LOOP_WATCH.reset)
