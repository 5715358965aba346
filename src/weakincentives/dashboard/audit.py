"""A record of everything that somebody did, or tried to do, through a dashboard."""

import logging
from dataclasses import asdict, dataclass

from weakincentives.dispatch import Dispatcher, publish
from weakincentives.logs import get_logger

from .config import Right

__all__ = ["Audit", "DashboardAction"]

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DashboardAction:
    """Something was done through a dashboard, or refused, or it failed."""

    action: str
    queue: str
    outcome: str
    """``done``, ``stopped``, ``refused`` or ``failed``."""
    count: int
    """How many messages it has changed."""
    client: str
    """The address of the browser or program that asked for it."""
    detail: str = ""
    """Which messages: an id or a filter; or the error."""


class Audit:
    """Logs each action, and publishes it as an event."""

    def __init__(self, dispatcher: Dispatcher | None) -> None:
        self._dispatcher = dispatcher

    def record(
        self, action: Right, queue: str, outcome: str, client: str, *, count: int, detail: str
    ) -> None:
        """Take note of one action."""
        event = DashboardAction(str(action), queue, outcome, count, client, detail)
        logger.event(logging.INFO, "Dashboard action", asdict(event))
        if self._dispatcher is not None:
            publish(self._dispatcher, event)
