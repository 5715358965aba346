"""A Store that writes down every step it is asked to take."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from copy import copy
from functools import partial
from typing import Any

from chaos.history import Log
from weakincentives.runtime.mailbox.seam.optional_protocols import backend_of

__all__ = ["RecordedStore", "recorded"]

Hook = Callable[[str, str], None]
"""Called with "before" or "after" and the name of each step: where scenarios strike."""


def recorded(mailbox: Any, log: Log, hook: Hook | None = None) -> Any:
    """Let a mailbox record what it does, and return it."""
    mailbox._use(RecordedStore(mailbox.store, log, hook))
    return mailbox


class RecordedStore:
    """Any Store, with a history; a step that is cancelled is one of unknown outcome."""

    def __init__(self, store: Any, log: Log, hook: Hook | None = None) -> None:
        self.inner = store
        self.log = log
        self._hook = hook or (lambda when, step: None)
        self._ids: dict[str, str] = {}
        self._repeated: set[str] = set()
        self.name, self.limits, self.capabilities = store.name, store.limits, store.capabilities
        self.clock, self.look_interval, self.steps = store.clock, store.look_interval, store.steps
        self.stats, self.peek, self.close = store.stats, store.peek, store.close
        if hasattr(store, "queue"):
            self._note_repeats(store.queue)

    @property
    def backend_key(self) -> Any:
        """What the queue shares with others."""
        return backend_of(self.inner)

    @property
    def worker_table(self) -> Any:
        """Who serves the queues; not part of the history."""
        return self.inner.worker_table

    @property
    def pause_table(self) -> Any:
        """Which queues are paused; not part of the history."""
        return self.inner.pause_table

    @property
    def redrive_policy(self) -> Any:
        """What an SQSMailbox shows among its figures."""
        return self.inner.redrive_policy

    def lease_keeper(self) -> "RecordedStore":
        """Record what a thread does to extend leases in the same history."""
        keeper = copy(self)
        keeper.inner = self.inner.lease_keeper()
        keeper.steps, keeper.close = keeper.inner.steps, keeper.inner.close
        return keeper

    async def put(self, messages: Sequence[Any]) -> int | None:
        delay = max(message.delay for message in messages)
        self._hook("before", "send")
        with self._recorded("send", [(message.id, "") for message in messages], delay):
            added: int | None = await self.inner.put(messages)
        self._hook("after", "send")
        return added

    def is_beside(self, table: Any) -> bool:
        return hasattr(self.inner, "is_beside") and bool(self.inner.is_beside(table))

    def carries(self, place: Any) -> bool:
        return hasattr(self.inner, "carries") and bool(self.inner.carries(_inner(place)))

    async def put_expecting(self, messages: Any, table: Any, replies: Any) -> None:
        self._hook("before", "send")
        sends = [(message.id, "") for message in messages]
        with self._recorded("send", sends, max(message.delay for message in messages)):
            await self.inner.put_expecting(messages, table, replies)
        self._hook("after", "send")

    async def put_reopening(self, message: Any, table: Any, reply: Any) -> None:
        self._hook("before", "send")
        with self._recorded("send", [(message.id, "")], message.delay):
            await self.inner.put_reopening(message, table, reply)
        self._hook("after", "send")

    async def put_off(self, handle: str, delay: float, *reply: Any) -> bool:
        step = partial(self._put_off, handle, delay, *reply)
        (done,) = await self._settle("nack", [handle], step, delay)
        return bool(done)

    async def _put_off(self, handle: str, delay: float, *reply: Any) -> list[bool]:
        return [await self.inner.put_off(handle, delay, *reply)]

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
        answers: Sequence[Any] = (),
    ) -> Any:
        step = "ack" if acknowledge else "receive"
        options = self._unwrapped(answers)
        self._hook("before", step)
        with (
            self._recorded("ack", self._of(acknowledge)) as acks,
            self._recorded("receive", [("", "")], seconds) as look,
            ExitStack() as sends,
        ):
            recorded = self._answered(sends, answers)
            leases = await self.inner.lease(
                count, seconds, acknowledge=acknowledge, ids=ids, **options
            )
            acks.outcomes = self._outcomes(leases.acknowledged)
            self._note_answers(recorded, acknowledge, leases.acknowledged)
            self._note(look, leases)
        self._hook("after", step)
        return leases

    async def acknowledge(self, handles: Sequence[str], *, answers: Sequence[Any] = ()) -> Any:
        options = self._unwrapped(answers)
        with ExitStack() as sends:
            recorded = self._answered(sends, answers)
            done = await self._settle(
                "ack", handles, lambda: self.inner.acknowledge(handles, **options)
            )
            self._note_answers(recorded, handles, done)
        return done

    @staticmethod
    def _unwrapped(answers: Sequence[Any]) -> dict[str, Any]:
        """Return the option that passes answers on to stores that have no history."""
        if not answers:
            return {}
        return {"answers": [one._replace(place=_inner(one.place)) for one in answers]}

    @staticmethod
    def _answered(sends: ExitStack, answers: Sequence[Any]) -> list[tuple[str, Any]]:
        """Record the answers that are messages as sends of where they go."""
        return [
            (one.handle, sends.enter_context(one.place.recorded("send", [(one.what.id, "")])))
            for one in answers
            if isinstance(one.place, RecordedStore)
        ]

    @staticmethod
    def _note_answers(
        recorded: list[tuple[str, Any]], handles: Sequence[str], done: Sequence[bool]
    ) -> None:
        acknowledged = {handle for handle, ok in zip(handles, done, strict=True) if ok}
        for handle, send in recorded:
            send.outcomes = "ok" if handle in acknowledged else "failed"

    async def release(self, handles: Sequence[str], delay: float, how: str = "failed") -> Any:
        step = partial(self.inner.release, handles, delay, how)
        return await self._settle("undo" if how == "undone" else "nack", handles, step, delay)

    async def extend(self, handles: Sequence[str], seconds: float) -> Any:
        return await self._settle(
            "extend", handles, lambda: self.inner.extend(handles, seconds), seconds
        )

    async def purge(self) -> Any:
        with self._recorded("purge", [("", "")]):
            return await self.inner.purge()

    def listen(self, *, in_loop: bool = False) -> "RecordedListener":
        return RecordedListener(self, self.inner.listen(in_loop=in_loop))

    def note(self, call: Any, leases: Any) -> None:
        self._note(call, leases)

    def recorded(self, op: str, subjects: Any, seconds: float = 0.0) -> Any:
        return self._recorded(op, subjects, seconds)

    @contextmanager
    def _recorded(self, op: str, subjects: Any, seconds: float = 0.0) -> Iterator[Any]:
        if not subjects:
            yield _Nothing()
            return
        with self.log.operation(op, subjects, seconds) as call:
            yield call

    def _note_repeats(self, queue: Any) -> None:
        """Write down calls that the client had to repeat: nobody knows what became of the first."""
        was_leased, was_put = queue.was_leased, queue.was_put
        was_acknowledged = queue.was_acknowledged

        def note_lease(outcome: Any, started: float, seconds: float, acks: Any = ()) -> Any:
            if outcome.repeated:
                self.log.mark("lost receive")
                self._note_unsure(acks)
            return was_leased(outcome, started, seconds, acks)

        def note_put(outcome: Any, messages: Sequence[Any]) -> None:
            if outcome.repeated:
                with self.log.operation("resend", [(message.id, "") for message in messages]):
                    pass
            was_put(outcome, messages)

        def note_acks(outcome: Any, handles: Sequence[str]) -> Any:
            if outcome.repeated:
                self._note_unsure(handles)
            return was_acknowledged(outcome, handles)

        queue.was_leased, queue.was_put = note_lease, note_put
        queue.was_acknowledged = note_acks
        queue.was_released = self._noting_repeats(queue.was_released)
        queue.was_extended = self._noting_repeats(queue.was_extended)

    def _noting_repeats(self, usual: Callable[..., Any]) -> Callable[..., Any]:
        def note(outcome: Any, handles: Sequence[str], *rest: Any) -> Any:
            if outcome.repeated:
                self._repeated.update(handles)
            return usual(outcome, handles, *rest)

        return note

    def _note_unsure(self, handles: Sequence[str]) -> None:
        """A repeat is refused once the lease is over; the first attempt may have got there."""
        if handles:
            with self.log.operation("ack", self._of(handles)) as call:
                call.outcomes = "unknown"

    async def _settle(
        self, op: str, handles: Sequence[str], step: Callable[[], Any], seconds: float = 0.0
    ) -> Any:
        self._hook("before", op)
        with self._recorded(op, self._of(handles), seconds) as call:
            done = await step()
            call.outcomes = self._outcomes_of(handles, done)
        self._hook("after", op)
        return done

    def _note(self, call: Any, leases: Any) -> None:
        call.got = [(one.id, one.handle, one.delivery_count) for one in leases.messages]
        self._ids.update({one.handle: one.id for one in leases.messages})

    def _of(self, handles: Sequence[str]) -> list[tuple[str, str]]:
        return [(self._ids.get(handle, ""), handle) for handle in handles]

    def _outcomes_of(self, handles: Sequence[str], done: Sequence[bool]) -> list[str]:
        """Refused, but not the first time: the attempt whose answer was lost may have counted."""
        refused = ["unknown" if handle in self._repeated else "failed" for handle in handles]
        self._repeated.difference_update(handles)
        return ["ok" if one else other for one, other in zip(done, refused, strict=True)]

    @staticmethod
    def _outcomes(done: Sequence[bool]) -> list[str]:
        return ["ok" if one else "failed" for one in done]


class RecordedListener:
    def __init__(self, store: RecordedStore, inner: Any) -> None:
        self._store = store
        self._inner = inner
        self.interrupt, self.close = inner.interrupt, inner.close

    async def lease(self, count: int, seconds: float, wait: float) -> Any:
        with self._store.recorded("receive", [("", "")], seconds) as look:
            leases = await self._inner.lease(count, seconds, wait)
            self._store.note(look, leases)
        return leases


class _Nothing:
    outcomes: Any = "ok"


def _inner(place: Any) -> Any:
    return place.inner if isinstance(place, RecordedStore) else place
