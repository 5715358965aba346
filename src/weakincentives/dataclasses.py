"""Frozen, slotted dataclasses that can be created as ``Result[X](...)``."""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

from typing_extensions import dataclass_transform

__all__ = ["FrozenDataclass"]

C = TypeVar("C")


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def FrozenDataclass() -> Callable[[type[C]], type[C]]:  # noqa: N802 - a public name
    """Decorate a class as a frozen, slotted dataclass.

    ``dataclass(frozen=True, slots=True)`` alone breaks on ``Result[X](...)`` in CPython 3.11 and
    3.12: typing sets ``__orig_class__`` on the new object, and the generated ``__setattr__`` then
    calls ``super()`` with the class as it was before the slots were added.
    """

    def decorate(cls: type[C]) -> type[C]:
        frozen: Any = dataclasses.dataclass(frozen=True, slots=True)(cls)

        def refuse_set(self: object, name: str, value: object) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def refuse_delete(self: object, name: str) -> None:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

        frozen.__setattr__ = refuse_set
        frozen.__delattr__ = refuse_delete
        return frozen  # type: ignore[no-any-return]

    return decorate
