"""Values in bodies that are never shown, chosen by JSON paths."""

from collections.abc import Iterable
from typing import Any

from weakincentives.runtime.mailbox import InvalidParameterError

__all__ = ["HIDDEN", "HiddenFields"]

HIDDEN = "***"
Path = tuple[str, ...]


class HiddenFields:
    """Replaces values at certain paths: ``card.number``, ``items.*.price``, ``**.password``.

    A step is a key or an index, ``*`` for any of one level, or ``**`` for any number of levels.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(_steps(path) for path in paths)

    def __bool__(self) -> bool:
        """Whether anything is to be hidden."""
        return bool(self._paths)

    def applied(self, value: Any) -> Any:
        """Return the value with stars in the hidden places; what is not hidden is the same."""
        return _applied(value, self._paths) if self._paths else value


def _steps(path: str) -> Path:
    steps = tuple(path.removeprefix("$.").removeprefix("body.").split("."))
    if not all(steps) or steps[-1] == "**":
        raise InvalidParameterError(
            f"redact takes a path such as card.number or **.password, not {path!r}"
        )
    return steps


def _applied(value: Any, paths: frozenset[Path]) -> Any:
    if isinstance(value, dict):
        return {key: _entry(str(key), child, paths) for key, child in value.items()}
    if isinstance(value, list):
        return [_entry(str(index), child, paths) for index, child in enumerate(value)]
    return value


def _entry(key: str, child: Any, paths: frozenset[Path]) -> Any:
    below = frozenset(rest for path in paths for rest in _below(path, key))
    return HIDDEN if () in below else _applied(child, below)


def _below(path: Path, key: str) -> Iterable[Path]:
    """Yield what is left of a path after one step down."""
    first, rest = path[0], path[1:]
    if first == "**":
        yield path
        yield from _below(rest, key)
    elif first in ("*", key):
        yield rest
