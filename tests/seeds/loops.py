"""The loops' part of the stage; nothing here is touched before the loops are built."""

import importlib
from collections.abc import Callable
from typing import Any

from tests.seeds.stage import MyOutput, MyRequest

__all__ = ["adapter", "built", "my_loop", "names"]

PUBLIC = (
    "DLQPolicy",
    "DeadLetter",
    "LeaseExtender",
    "LeaseExtenderConfig",
    "MainLoop",
    "MainLoopConfig",
    "MainLoopRequest",
    "MainLoopResult",
)


def built(name: str) -> Any:
    """Return a name of the runtime or the evals, or None while it does not exist."""
    for module in ("weakincentives.runtime", "weakincentives.evals"):
        try:
            return getattr(importlib.import_module(module), name)
        except (AttributeError, ModuleNotFoundError):
            continue
    return None


def names() -> dict[str, Any]:
    """What blocks use of the runtime without importing it."""
    return {name: value for name in PUBLIC if (value := built(name)) is not None}


def adapter(answer: Callable[[Any], Any]) -> Any:
    """An adapter that answers with whatever ``answer`` makes of the prompt."""
    from weakincentives.adapters import CallableAdapter

    return CallableAdapter(answer)


def my_loop() -> Any:
    """A loop with types of its own, as the documents subclass it."""
    from weakincentives.runtime import MainLoop

    class MyLoop(MainLoop[MyRequest, MyOutput]):  # type: ignore[misc, valid-type]
        pass

    return MyLoop
