"""In-process events: whoever wants to know subscribes, whoever acts does not care."""

import logging
import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable

__all__ = ["Dispatcher", "InProcessDispatcher"]

logger = logging.getLogger(__name__)

E = TypeVar("E")
Handler = Callable[[Any], None]


@runtime_checkable
class Dispatcher(Protocol):
    """Delivers an event to everybody who subscribed to its type."""

    def subscribe(self, event_type: type[E], handler: Callable[[E], None]) -> None:
        """Call ``handler`` with every later event of ``event_type`` or a subclass of it."""
        ...

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], None]) -> bool:
        """Undo one ``subscribe``; False if there was none."""
        ...

    def dispatch(self, event: object) -> None:
        """Call every handler of this event, in the caller's thread."""
        ...


class InProcessDispatcher:
    """A thread-safe `Dispatcher`; a handler that raises is logged and harms nobody."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced, never changed in place, so that dispatch reads it without the lock.
        self._handlers: dict[type, tuple[Handler, ...]] = {}

    def subscribe(self, event_type: type[E], handler: Callable[[E], None]) -> None:
        """Call ``handler`` with every later event of ``event_type`` or a subclass of it."""
        with self._lock:
            handlers = self._handlers.get(event_type, ())
            self._handlers = {**self._handlers, event_type: (*handlers, handler)}

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], None]) -> bool:
        """Undo one ``subscribe``; False if there was none."""
        with self._lock:
            handlers = list(self._handlers.get(event_type, ()))
            if handler not in handlers:
                return False
            handlers.remove(handler)
            self._handlers = {**self._handlers, event_type: tuple(handlers)}
            return True

    def dispatch(self, event: object) -> None:
        """Call every handler of this event, in the caller's thread."""
        subscribed = self._handlers
        for event_type in type(event).__mro__:
            for handler in subscribed.get(event_type, ()):
                try:
                    handler(event)
                except Exception:
                    logger.exception("a subscriber of %s failed", event_type.__name__)
