"""Tells the workers of this process at once that a message was cancelled here."""

from collections.abc import Callable

from .optional_protocols import backend_of
from .store import Store

__all__ = ["announce_cancel", "on_cancel"]

_listeners: list[Callable[[object], object]] = []


def on_cancel(listener: Callable[[object], object]) -> None:
    """Have this called with the backend of each queue in which a message was cancelled."""
    _listeners.append(listener)


def announce_cancel(store: Store) -> None:
    """Tell that a message of this queue was cancelled; workers elsewhere find out by themselves."""
    for listener in _listeners:
        listener(backend_of(store))
