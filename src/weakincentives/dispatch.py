"""Delivers events to their subscribers inside one process."""

import threading
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Protocol, TypeVar, runtime_checkable

from .logs import get_logger

__all__ = ["Dispatcher", "InProcessDispatcher", "has_subscribers", "publish"]

logger = get_logger(__name__)

E = TypeVar("E")
Handler = Callable[[Any], None]


@runtime_checkable
class Dispatcher(Protocol):
    """Delivers each event to the handlers that are subscribed to its type."""

    def subscribe(self, event_type: type[E], handler: Callable[[E], None]) -> None:
        """Call ``handler`` with every future event of ``event_type`` or a subclass of it."""
        ...

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], None]) -> bool:
        """Undo one ``subscribe``; return False if there was none."""
        ...

    def dispatch(self, event: object) -> None:
        """Call every handler of this event in the caller's thread."""
        ...


class InProcessDispatcher:
    """A thread-safe `Dispatcher`; if a handler raises, that is logged and the others still run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Replaced as a whole, never changed in place, so that dispatch can read it without a lock.
        self._handlers: dict[type, tuple[Handler, ...]] = {}
        # What `_handlers` means for each class of event that was seen, its bases included.
        self._found: dict[type, tuple[Handler, ...]] = {}

    def subscribe(self, event_type: type[E], handler: Callable[[E], None]) -> None:
        """Call ``handler`` with every future event of ``event_type`` or a subclass of it."""
        with self._lock:
            handlers = self._handlers.get(event_type, ())
            self._replace(event_type, (*handlers, handler))

    def unsubscribe(self, event_type: type[E], handler: Callable[[E], None]) -> bool:
        """Undo one ``subscribe``; return False if there was none."""
        with self._lock:
            handlers = list(self._handlers.get(event_type, ()))
            if handler not in handlers:
                return False
            handlers.remove(handler)
            self._replace(event_type, tuple(handlers))
            return True

    def _replace(self, event_type: type, handlers: tuple[Handler, ...]) -> None:
        # In this order: `_find` reads them in the other one, so it never fills the new cache with
        # what it found among the old handlers.
        self._handlers = {**self._handlers, event_type: handlers}
        self._found = {}

    def has_subscribers(self, event_type: type) -> bool:
        """Return whether an event of this type would reach any handler."""
        found = self._found.get(event_type)
        return bool(self._find(event_type) if found is None else found)

    def dispatch(self, event: object) -> None:
        """Call every handler of this event in the caller's thread."""
        kind = type(event)
        handlers = self._found.get(kind)
        for handler in self._find(kind) if handlers is None else handlers:
            try:
                handler(event)
            except Exception:
                logger.exception("a subscriber of %s failed", kind.__name__)

    def _find(self, kind: type) -> tuple[Handler, ...]:
        found, subscribed = self._found, self._handlers
        handlers = tuple(one for base in kind.__mro__ for one in subscribed.get(base, ()))
        found[kind] = handlers
        return handlers


def publish(dispatcher: Dispatcher, event: object) -> None:
    """Dispatch an event; if the dispatcher raises, log that once and go on."""
    try:
        dispatcher.dispatch(event)
    except Exception:  # noqa: BLE001 - the caller's work is done, with or without subscribers
        _report(type(dispatcher))


def has_subscribers(dispatcher: Dispatcher, event_type: type) -> bool:
    """Return whether an event of this type may reach anyone; True if the dispatcher cannot tell."""
    return not isinstance(dispatcher, InProcessDispatcher) or dispatcher.has_subscribers(event_type)


# Cached, so that it logs once for each class: there may be thousands of events a second.
@lru_cache(maxsize=1000)
def _report(kind: type) -> None:
    logger.exception("%s.dispatch() failed; its subscribers may miss events", kind.__qualname__)
