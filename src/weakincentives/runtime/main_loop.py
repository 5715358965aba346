"""A public import path; the loop itself is in `agent.main_loop`."""

from .agent.main_loop import *  # noqa: F403
from .agent.main_loop import __all__ as __all__
