"""Spans by mailbox and message: those that are open, and for a while those that have ended."""

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, NamedTuple

from weakincentives.runtime.mailbox.seam.forks import begin_anew_in_children

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

__all__ = ["Key", "OpenSpan", "SpanTable"]

Key = tuple[str, str]
"""The names of a mailbox and of a message."""
MOST_SPANS = 10_000
"""How many are remembered; the oldest is ended and forgotten, for nobody has told of its end."""


class OpenSpan(NamedTuple):
    """A span that has begun, and when, as a ``time.monotonic`` reading."""

    span: "Span"
    began: float


class SpanTable:
    """The spans of one kind of work."""

    def __init__(self) -> None:
        self._begin_anew()
        begin_anew_in_children(self)

    def _begin_anew(self) -> None:
        # Reentrant: a signal handler may send a message while this thread holds it.
        self._lock: Any = threading.RLock()
        self._open: OrderedDict[Key, OpenSpan] = OrderedDict()
        self._contexts: OrderedDict[Key, SpanContext] = OrderedDict()

    def begin(self, key: Key, span: OpenSpan) -> None:
        """Remember a span that has begun; one of the same message that was open is ended."""
        with self._lock:
            replaced = self._open.pop(key, None)
            self._open[key] = span
            self._contexts.pop(key, None)
            self._contexts[key] = span.span.get_span_context()
            forgotten = [self._open.popitem(last=False)[1]] if len(self._open) > MOST_SPANS else []
            if len(self._contexts) > MOST_SPANS:
                self._contexts.popitem(last=False)
        for one in (*forgotten, *([replaced] if replaced else ())):
            one.span.end()

    def end(self, key: Key) -> OpenSpan | None:
        """Return the open span of a message, which the caller ends; None if there is none."""
        with self._lock:
            return self._open.pop(key, None)

    def context_of(self, key: Key) -> "SpanContext | None":
        """Return the context of a message's span, open or ended; None if it was forgotten."""
        with self._lock:
            return self._contexts.get(key)
