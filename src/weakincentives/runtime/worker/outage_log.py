"""Logs that a mailbox cannot be reached."""

import threading

from weakincentives.clock import Clock
from weakincentives.logs import get_logger

__all__ = ["OutageLog"]

logger = get_logger(__name__)

PACE = 60.0
"""Seconds between two log lines while an outage lasts."""


class OutageLog:
    """Logs an outage when it begins, once a minute while it lasts, and when it is over.

    All threads of a loop share one, because they see the same outage.
    """

    def __init__(self, name: str, clock: Clock) -> None:
        self._name = name
        self._clock = clock
        self._lock = threading.Lock()
        self._since: float | None = None
        self._told = 0.0

    def met(self, error: BaseException) -> None:
        """Record that the mailbox could not be reached."""
        now = self._clock.monotonic()
        with self._lock:
            since = self._since
            if since is not None and now - self._told < PACE:
                return
            self._since = now if since is None else since
            self._told = now
        so_far = "" if since is None else f" for {now - since:.0f} s"
        logger.warning(
            "%s cannot be reached%s: %s; trying again",
            self._name,
            so_far,
            error,
            extra={"mailbox": self._name},
        )

    def over(self) -> None:
        """Record that the mailbox was reached."""
        with self._lock:
            since, self._since = self._since, None
        if since is not None:
            seconds = self._clock.monotonic() - since
            logger.info(
                "%s can be reached again after %.3g s",
                self._name,
                seconds,
                extra={"mailbox": self._name, "seconds": round(seconds, 3)},
            )
