"""Asks mailboxes for figures without ever waiting long: each in a thread, and not too often."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

__all__ = ["LastReading", "refresh"]

V = TypeVar("V")

READ_TIMEOUT = 0.5
"""How many seconds a probe waits for the mailboxes to answer."""
MOST_THREADS = 32
"""How many mailboxes are asked at the same time; the rest have their turn the next time."""


class LastReading(Generic[V]):
    """What a call returned last, and when.

    If a backend hangs, that costs one thread, and the last known value is shown.
    """

    def __init__(self, name: str, ask: Callable[[], V]) -> None:
        self.name = name
        self.error: str | None = None
        """The type of the last error; None if the last call succeeded."""
        self._ask = ask
        self._lock = threading.Lock()
        self._asking: threading.Thread | None = None
        self._known: tuple[V, float] | None = None

    @property
    def value(self) -> V | None:
        """The last known value."""
        known = self._known
        return None if known is None else known[0]

    @property
    def age(self) -> float:
        """How many seconds ago that was; infinite if it is not known at all."""
        known = self._known
        return float("inf") if known is None else time.monotonic() - known[1]

    def ask(self, max_age: float) -> threading.Thread | None:
        """Start the call in a thread and return it; None if that is not needed or possible."""
        with self._lock:
            if (self._asking is not None and self._asking.is_alive()) or self.age < max_age:
                return None
            asking = threading.Thread(target=self._read, name=f"ask-{self.name}", daemon=True)
            try:
                asking.start()
            except RuntimeError as error:  # no thread can be started
                self.error = type(error).__name__
                return None
            self._asking = asking
            return asking

    def _read(self) -> None:
        try:
            self._known = self._ask(), time.monotonic()
            self.error = None
        except Exception as error:  # noqa: BLE001 - the probe reports any error of the backend
            self.error = type(error).__name__


def refresh(readings: Sequence[LastReading[Any]], max_age: float) -> None:
    """Ask for every value that is older than ``max_age``, and wait a moment for the answers."""
    deadline = time.monotonic() + READ_TIMEOUT
    oldest = sorted(readings, key=lambda reading: reading.age, reverse=True)
    for asked in [reading.ask(max_age) for reading in oldest[:MOST_THREADS]]:
        if asked is not None:
            asked.join(max(0.0, deadline - time.monotonic()))
