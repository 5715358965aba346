"""Ends a process whose loops hang, after logging the stacks of all threads."""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from weakincentives.clock import Clock, SystemClock
from weakincentives.runtime.heartbeat import Heartbeat
from weakincentives.runtime.mailbox.limits import check_positive

__all__ = ["WATCHDOG_EXIT_CODE", "Watchdog", "all_stacks", "end_process", "silence_while_awake"]

logger = logging.getLogger(__name__)

WATCHDOG_EXIT_CODE = 86
"""The exit code after a loop hung; neither Python nor shells use it for anything else."""

LONGEST_INTERVAL = 5.0
REPORT_SECONDS = 5.0


class WatchedLoop(Protocol):
    """What a watchdog needs from a loop."""

    @property
    def running(self) -> bool:
        """Whether the loop is running; only a running loop can hang."""
        ...

    @property
    def heartbeat(self) -> Heartbeat:
        """The loop's heartbeat."""
        ...


class Watchdog:
    """Ends the process if a running loop gives no heartbeat for ``threshold`` seconds.

    It logs the stacks of all threads and exits with `WATCHDOG_EXIT_CODE`; or, if ``action`` is
    given, calls it with the report instead. Time in which the process was stopped or suspended
    does not count. ``threshold`` must be longer than the longest job whose handler does not call
    ``beat()``, and than the longest wait for a message.
    """

    def __init__(
        self,
        loops: Sequence[WatchedLoop],
        *,
        threshold: float,
        action: Callable[[str], object] | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._loops = tuple(loops)
        self._threshold = check_positive("threshold", threshold)
        self._interval = min(threshold / 10, LONGEST_INTERVAL)
        self._action = action if action is not None else end_process
        self._clock: Clock = clock if clock is not None else SystemClock()
        self._silence = [0.0] * len(self._loops)
        self._checked = self._clock.monotonic()
        self._lock = threading.Lock()
        self._watching: tuple[threading.Thread, threading.Event] | None = None

    def start(self) -> None:
        """Start watching; a second start changes nothing."""
        with self._lock:
            if self._watching is None:
                stop = threading.Event()
                self._silence = [0.0] * len(self._loops)
                self._checked = self._clock.monotonic()
                thread = threading.Thread(
                    target=self._watch, args=(stop,), name="watchdog", daemon=True
                )
                thread.start()
                self._watching = thread, stop

    def stop(self) -> None:
        """Stop watching; a second stop changes nothing."""
        with self._lock:
            watching, self._watching = self._watching, None
        if watching is not None:
            thread, stop = watching
            stop.set()
            if thread is not threading.current_thread():
                thread.join()

    def check(self) -> list[WatchedLoop]:
        """Check every loop once and return those that hang."""
        now = self._clock.monotonic()
        gap, self._checked = now - self._checked, now
        for index, loop in enumerate(self._loops):
            self._silence[index] = (
                silence_while_awake(
                    self._silence[index], loop.heartbeat.elapsed(), gap, 2 * self._interval
                )
                if loop.running
                else 0.0
            )
        return [
            loop
            for loop, silence in zip(self._loops, self._silence, strict=True)
            if silence >= self._threshold
        ]

    def _watch(self, stop: threading.Event) -> None:
        while not stop.wait(self._interval):
            if hung := self.check():
                names = ", ".join(type(loop).__name__ for loop in hung)
                self._action(
                    f"watchdog: no heartbeat for {self._threshold:g} s from {names}; "
                    f"the stacks of all threads:\n{all_stacks()}"
                )
                return


def silence_while_awake(silence: float, elapsed: float, gap: float, most: float) -> float:
    """Return how long a loop has been silent, not counting time in which its process was stopped.

    ``gap`` is the time since the last check. If it is longer than ``most``, the process was
    stopped, suspended or starved meanwhile, and the excess does not count.
    """
    return min(elapsed, most) if elapsed < gap else silence + min(gap, most)


def all_stacks() -> str:
    """Return the stack of every thread of this process."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    return "\n".join(
        f"Thread {names.get(ident, '?')} ({ident}):\n" + "".join(traceback.format_stack(frame))
        for ident, frame in sys._current_frames().items()
    )


def end_process(report: str) -> None:
    """Log the report and exit with `WATCHDOG_EXIT_CODE`, even if logging itself hangs."""
    try:
        _say(report)
    finally:
        os._exit(WATCHDOG_EXIT_CODE)


def _say(report: str) -> None:
    for say in (partial(_log, report), partial(_write, report.encode())):
        # In a thread, because logging may block: the hanging thread may hold a log handler's
        # lock, or the log may go to a pipe that is full.
        thread = threading.Thread(target=say, daemon=True)
        thread.start()
        thread.join(REPORT_SECONDS)
        if not thread.is_alive():
            break


def _log(report: str) -> None:
    logger.critical("%s", report)
    logging.shutdown()


def _write(report: bytes) -> None:
    while report:
        report = report[os.write(2, report) :]
