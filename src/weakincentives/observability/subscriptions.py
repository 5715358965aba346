"""The handlers of one subscriber, subscribed to each dispatcher once."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

from weakincentives.dispatch import Dispatcher

__all__ = ["Subscriptions"]


class Subscriptions:
    """Handlers by type of event."""

    def __init__(self, handlers: Mapping[type, Callable[[Any], None]]) -> None:
        self._handlers = handlers
        self._lock = threading.Lock()
        self._dispatchers: list[Dispatcher] = []

    def add(self, dispatcher: Dispatcher) -> None:
        """Subscribe all handlers, once: or else everything would count twice."""
        with self._lock:
            # By identity: another dispatcher may compare as it likes.
            if any(known is dispatcher for known in self._dispatchers):
                return
            self._dispatchers.append(dispatcher)
        for event_type, handler in self._handlers.items():
            dispatcher.subscribe(event_type, handler)
