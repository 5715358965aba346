"""What a dashboard may show and do, and who may see it."""

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from weakincentives.runtime.mailbox import InvalidParameterError

from .hidden_fields import HiddenFields

__all__ = ["DashboardConfig", "Right"]

SHORTEST_TOKEN = 16
PREFIX = re.compile(r"(?:/[A-Za-z0-9_.~-]+)*")
TRACE_URL = re.compile(r"https?://[^\s{}]+\{trace_id\}[^\s{}]*")
HOST = re.compile(r"[A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\]")


class Right(StrEnum):
    """One thing that a dashboard may be allowed to do."""

    VIEW_BODIES = "view_bodies"
    """Show bodies, attributes and answers; without it, only counts, ids and errors."""
    REPLAY = "replay"
    DISCARD = "discard"
    PURGE = "purge"
    PAUSE = "pause"
    SEND = "send"

    @property
    def is_action(self) -> bool:
        """Whether it changes anything."""
        return self is not Right.VIEW_BODIES


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    """The settings of a dashboard."""

    rights: frozenset[Right] = frozenset({Right.VIEW_BODIES})
    """What it may do. By default it is read-only."""
    token: str | None = None
    """Who knows it may use the dashboard; None lets in everybody who can reach it."""
    hosts: tuple[str, ...] = ("localhost", "127.0.0.1", "[::1]")
    """The host names, without a port, under which the dashboard may be asked for."""
    prefix: str = ""
    """The path below which a proxy serves it, such as ``/wink``."""
    redact: tuple[str, ...] = ()
    """JSON paths into bodies whose values are never shown, such as ``card.number`` or ``*.ssn``."""
    history: Path | None = None
    """The file that keeps the counts of queues; None keeps them in memory."""
    trace_url: str | None = None
    """The address of a trace, with ``{trace_id}`` in it, for links from dead letters."""
    interval: float = 2.0
    """Seconds between two looks at the queues."""

    def __post_init__(self) -> None:
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise InvalidParameterError(
                f"token must have at least {SHORTEST_TOKEN} characters, not {len(self.token)}"
            )
        actions = sorted(right for right in self.rights if right.is_action)
        if self.token is None and actions:
            raise InvalidParameterError(
                f"rights that change something ({', '.join(actions)}) need a token"
            )
        if not PREFIX.fullmatch(self.prefix):
            raise InvalidParameterError(
                f"prefix must be a path such as /wink, without a slash at its end, "
                f"not {self.prefix!r}"
            )
        wrong = [host for host in self.hosts if not HOST.fullmatch(host)]
        if wrong:
            raise InvalidParameterError(f"hosts are names without a port, not {wrong[0]!r}")
        if self.trace_url is not None and not TRACE_URL.fullmatch(self.trace_url):
            raise InvalidParameterError(
                "trace_url must be a URL of http or https with {trace_id} in it, "
                f"not {self.trace_url!r}"
            )
        HiddenFields(self.redact)  # raises for a path that is none
        if not 0.05 <= self.interval <= 3600:
            raise InvalidParameterError(
                f"interval must be from 0.05 to 3600 seconds, not {self.interval!r}"
            )
