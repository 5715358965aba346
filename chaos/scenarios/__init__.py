"""The scenarios, a module for each subject."""

import importlib
import pkgutil

from chaos.stage import SCENARIOS, Scenario

__all__ = ["all_scenarios"]


def all_scenarios() -> dict[str, Scenario]:
    """Import every module here and return what they registered, in their order."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return SCENARIOS
