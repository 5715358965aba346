"""Lets an event loop use any store."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast

from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox.errors import MailboxError

from .driver import start_unlisted
from .optional_protocols import Answer, AnswerCarrier
from .step_threads import hop
from .store import Leases, Listener, Store
from .waiting import RETRIES, Retries

__all__ = ["LoopStore"]

logger = get_logger(__name__)

V = TypeVar("V")


class Cancellation:
    """Ends the retries of a step once nobody waits for its result."""

    def __init__(self, outer: Retries) -> None:
        self._outer = outer
        self.has_come = False
        self.retries = outer._replace(failed=self._failed)

    def _failed(self, error: Exception, seconds: float) -> bool:
        return self._outer.failed(error, seconds) or self.has_come


class LoopStore:
    """Never blocks the event loop, and gives back what a cancelled receive has leased."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
        answers: Sequence[Answer] = (),
    ) -> Leases:
        """Acknowledge, answer, then lease, in one step."""
        look = self._step(
            lambda: (
                cast(AnswerCarrier, self._store).lease(
                    count, seconds, acknowledge=acknowledge, ids=ids, answers=answers
                )
                if answers
                else self._store.lease(count, seconds, acknowledge=acknowledge, ids=ids)
            )
        )
        # A step that does not suspend cannot be cancelled, so it needs no guard.
        return await (look if self._store.steps == "inline" else self.guarded(look))

    async def acknowledge(
        self, handles: Sequence[str], *, answers: Sequence[Answer] = ()
    ) -> Sequence[bool]:
        """Acknowledge and answer in one step; False where the lease had ended."""
        return await self._step(
            lambda: (
                cast(AnswerCarrier, self._store).acknowledge(handles, answers=answers)
                if answers
                else self._store.acknowledge(handles)
            )
        )

    def listen(self) -> Listener:
        """Return a new listener, which waits in the event loop."""
        return GuardedListener(self, self._store.listen(in_loop=True))

    async def guarded(
        self,
        look: Coroutine[Any, Any, Leases],
        interrupt: Callable[[], None] | None = None,
    ) -> Leases:
        """Await a lease; if this is cancelled, interrupt it and give back what it leased."""
        cancellation = Cancellation(RETRIES.get())
        retries = RETRIES.set(cancellation.retries)
        task = start_unlisted(look)  # with these retries in its context
        RETRIES.reset(retries)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            cancellation.has_come = True
            if interrupt is not None:
                interrupt()
            giving_back = start_unlisted(self._give_back(task))
            while not giving_back.done():
                try:
                    await asyncio.wait([giving_back])
                except asyncio.CancelledError:
                    pass  # cancelled again: the messages are given back all the same
            raise

    async def _give_back(self, look: asyncio.Future[Leases]) -> None:
        try:
            leases = await look
            if leases.messages:
                handles = [leased.handle for leased in leases.messages]
                await self._step(lambda: self._store.release(handles, 0.0, "undone"))
        except MailboxError as error:
            name = self._store.name
            logger.warning(
                "%r: a cancelled receive could not give its messages back: %s", name, error
            )

    async def _step(self, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        return await (hop(make, self._store) if self._store.steps == "blocking" else make())


class GuardedListener:
    """A listener that gives back what a cancelled wait has leased."""

    def __init__(self, store: LoopStore, listener: Listener) -> None:
        self._store = store
        self._listener = listener
        self.interrupt = listener.interrupt
        self.close = listener.close

    async def lease(self, count: int, seconds: float, wait: float) -> Leases:
        """Wait until there may be a message, then lease."""
        look = self._listener.lease(count, seconds, wait)
        return await self._store.guarded(look, self.interrupt)
