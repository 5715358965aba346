"""A dashboard of the queues of a backend, for browsers; it needs the extra ``dashboard``."""

from .app import Dashboard
from .audit import DashboardAction
from .config import DashboardConfig, Right

__all__ = ["Dashboard", "DashboardAction", "DashboardConfig", "Right"]
