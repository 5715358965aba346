"""Mailboxes, and the loops that serve them."""

from .health import HealthServer
from .heartbeat import Heartbeat
from .lifecycle import LoopGroup, Runnable
from .shutdown import ShutdownCoordinator
from .watchdog import Watchdog

__all__ = [
    "HealthServer",
    "Heartbeat",
    "LoopGroup",
    "Runnable",
    "ShutdownCoordinator",
    "Watchdog",
]
