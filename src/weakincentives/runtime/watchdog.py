"""Ends a process whose loops hang, after it has told the log where."""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from weakincentives.clock import Clock, SystemClock

from .heartbeat import Heartbeat
from .mailbox.limits import check_positive

__all__ = ["WATCHDOG_EXIT_CODE", "Watchdog", "all_stacks", "end_process", "witnessed"]

logger = logging.getLogger(__name__)

WATCHDOG_EXIT_CODE = 86
"""What the process exits with when a loop hung; Python and shells use it for nothing else."""

LONGEST_INTERVAL = 5.0
LAST_WORDS = 5.0


class Watched(Protocol):
    """What a watchdog needs to know of a loop."""

    @property
    def running(self) -> bool:
        """Whether the loop runs; one that does not cannot hang."""
        ...

    @property
    def heartbeat(self) -> Heartbeat:
        """The loop's pulse."""
        ...


class Watchdog:
    """Watches running loops; one that gives no beat for ``threshold`` seconds ends the process.

    The stacks of all threads go to the log, then the process exits with `WATCHDOG_EXIT_CODE`, or
    ``action`` is called with the report instead. Only time in which the process was awake counts:
    one that was stopped or suspended is not punished for it. ``threshold`` must exceed the longest
    job whose handler does not beat, and the longest wait for a message.
    """

    def __init__(
        self,
        loops: Sequence[Watched],
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
        """Begin to watch; a second start changes nothing."""
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

    def check(self) -> list[Watched]:
        """Look at every loop once and return those that hang."""
        now = self._clock.monotonic()
        gap, self._checked = now - self._checked, now
        for index, loop in enumerate(self._loops):
            self._silence[index] = (
                witnessed(self._silence[index], loop.heartbeat.elapsed(), gap, 2 * self._interval)
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


def witnessed(silence: float, elapsed: float, gap: float, most: float) -> float:
    """Return how long a loop has been silent, as far as its process was awake to beat.

    ``gap`` is the time since the last look; more than ``most`` of it was spent stopped, suspended
    or starved, and is not the loop's fault.
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
        for say in (partial(_log, report), partial(_write, report.encode())):
            # The thread that hangs may hold the lock of a log handler, or the log be a full pipe.
            thread = threading.Thread(target=say, daemon=True)
            thread.start()
            thread.join(LAST_WORDS)
            if not thread.is_alive():
                break
    finally:
        os._exit(WATCHDOG_EXIT_CODE)


def _log(report: str) -> None:
    logger.critical("%s", report)
    logging.shutdown()


def _write(report: bytes) -> None:
    while report:
        report = report[os.write(2, report) :]
