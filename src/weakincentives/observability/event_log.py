"""Logs every event, with its facts as fields of the record."""

import logging
import re
from dataclasses import fields
from typing import Any

from weakincentives.dispatch import Dispatcher
from weakincentives.logs import get_logger
from weakincentives.runtime import events as of_loops
from weakincentives.runtime.mailbox import events as of_mailboxes

from .observe import ServedMailbox
from .subscriptions import Subscriptions

__all__ = ["LEVELS", "EventLog"]

logger = get_logger(__name__)

LEVELS: dict[type, int] = {
    of_mailboxes.SendFailed: logging.WARNING,
    of_mailboxes.LeaseLost: logging.WARNING,
    of_mailboxes.LeasesExpired: logging.WARNING,
    of_mailboxes.MessagesDropped: logging.WARNING,
    of_mailboxes.MessagesSetAside: logging.WARNING,
    of_mailboxes.MessagesPurged: logging.INFO,
    of_mailboxes.QueuePaused: logging.WARNING,
    of_mailboxes.QueueResumed: logging.INFO,
    of_loops.JobAbandoned: logging.WARNING,
    of_loops.JobFailed: logging.INFO,
    of_loops.JobPutOff: logging.INFO,
    of_loops.MailboxUnreachable: logging.WARNING,
    of_loops.MessageDeadLettered: logging.WARNING,
    of_loops.DeadLetterProcessed: logging.INFO,
    of_loops.DeadLetterReplayed: logging.INFO,
}
"""How serious an event is; those that are not listed are logged for debugging."""

# An event of a batch has up to a thousand ids.
MOST_IDS = 10


class EventLog:
    """A subscriber that logs each event as ``message_sent mailbox=orders message_id=...``.

    The logger is ``weakincentives.observability.event_log``. Most events are logged at the level
    DEBUG, which for a busy queue is a lot; trouble is logged as a warning.
    """

    def __init__(self) -> None:
        kinds = of_mailboxes.MailboxEvent, of_loops.LoopEvent
        self._subscriptions = Subscriptions(dict.fromkeys(kinds, self._log))

    def subscribe_to(self, dispatcher: Dispatcher) -> None:
        """Log the events of a dispatcher."""
        self._subscriptions.add(dispatcher)

    def watch(self, served: ServedMailbox) -> None:
        """Do nothing: only events are logged."""

    def _log(self, event: Any) -> None:
        kind = type(event)
        level = LEVELS.get(kind, logging.DEBUG)
        if logger.isEnabledFor(level):
            logger.event(level, name_of(kind), facts_of(event))


def name_of(kind: type) -> str:
    """Return the name of an event in the log: ``MessageSent`` is ``message_sent``."""
    return re.sub("(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def facts_of(event: Any) -> dict[str, object]:
    """Return the fields of an event; attributes are left out, because they may hold anything."""
    facts: dict[str, object] = {}
    for field in fields(event):
        value = getattr(event, field.name)
        if field.name == "message_ids":
            value = " ".join(value[:MOST_IDS]) + " ..." * (len(value) > MOST_IDS)
        if field.name != "attributes":
            facts[field.name] = value
    return facts
