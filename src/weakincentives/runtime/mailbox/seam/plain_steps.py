"""The steps of the hot path as plain methods, for threads."""

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from .driver import drive
from .store import Leases, Outgoing, Store

__all__ = ["PlainSteps", "plain_steps"]


class PlainSteps(Protocol):
    """The steps of the hot path as plain methods; a blocking store may have these too.

    They save the cost of a coroutine. The coroutines of such a store only call them.
    """

    def put_now(self, messages: Sequence[Outgoing]) -> int | None:
        """Do what `Store.put` does."""
        ...

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Do what `Store.lease` does."""
        ...

    def acknowledge_now(self, handles: Sequence[str]) -> Sequence[bool]:
        """Do what `Store.acknowledge` does."""
        ...


class DrivenSteps:
    """Plain steps for a store that has only coroutines: runs each of them in the calling thread."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put_now(self, messages: Sequence[Outgoing]) -> int | None:
        """Add the messages."""
        coroutine = self._store.put(messages)
        try:
            return drive(coroutine)
        except BaseException:
            coroutine.close()
            raise

    def lease_now(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Leases:
        """Acknowledge, then lease, in one step."""
        coroutine = self._store.lease(count, seconds, acknowledge=acknowledge, ids=ids)
        try:
            return drive(coroutine)
        except BaseException:
            coroutine.close()
            raise

    def acknowledge_now(self, handles: Sequence[str]) -> Sequence[bool]:
        """Remove the messages."""
        coroutine = self._store.acknowledge(handles)
        try:
            return drive(coroutine)
        except BaseException:
            coroutine.close()
            raise


def plain_steps(store: Store) -> PlainSteps | None:
    """Return the plain steps of a store; None if its steps must be awaited."""
    if store.steps == "awaited":
        return None
    return store if _has_plain_steps(store) else DrivenSteps(store)


def _has_plain_steps(store: Store) -> TypeGuard[PlainSteps]:
    kind = type(store)
    return all(_is_up_to_date(kind, step) for step in ("put", "lease", "acknowledge"))


def _is_up_to_date(kind: type, step: str) -> bool:
    """Whether no subclass or wrapper has changed the coroutine of a step without its plain form."""
    plain = step + "_now"
    definer = next(
        (each for each in kind.__mro__ if plain in each.__dict__ or step in each.__dict__), None
    )
    return definer is not None and plain in definer.__dict__
