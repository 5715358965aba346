"""A Store that writes down every step it is asked to take."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from chaos.history import Log

__all__ = ["AwaitedRecordedStore", "RecordedStore", "recorded"]

Hook = Callable[[str, str], None]
"""Called with "before" or "after" and the name of each step: where scenarios strike."""


def recorded(mailbox: Any, log: Log, hook: Hook | None = None) -> Any:
    """Let a mailbox record what it does, and return it."""
    kind = AwaitedRecordedStore if mailbox.store.steps == "awaited" else RecordedStore
    mailbox.store = kind(mailbox.store, log, hook)
    return mailbox


class RecordedStore:
    """Any Store whose steps are not awaited, with a history."""

    def __init__(self, store: Any, log: Log, hook: Hook | None = None) -> None:
        self.inner = store
        self.log = log
        self._hook = hook or (lambda when, step: None)
        self._ids: dict[str, str] = {}
        self._joint = threading.local()
        self.name, self.limits, self.capabilities = store.name, store.limits, store.capabilities
        self.clock, self.look_interval, self.steps = store.clock, store.look_interval, store.steps
        self.stats, self.peek, self.close = store.stats, store.peek, store.close
        self.link = getattr(store, "link", None)  # a RedisMailbox closes it
        if hasattr(store, "queue"):
            self._note_repeats(store.queue)

    @property
    def redrive_policy(self) -> Any:
        """What an SQSMailbox shows among its figures."""
        return self.inner.redrive_policy

    def put(self, messages: Sequence[Any]) -> None:
        delay = max(message.delay for message in messages)
        self._hook("before", "send")
        with self._recorded("send", [(message.id, "") for message in messages], delay):
            self.inner.put(messages)
        self._hook("after", "send")

    def is_beside(self, table: Any) -> bool:
        return hasattr(self.inner, "is_beside") and bool(self.inner.is_beside(table))

    def put_expecting(self, message: Any, reply_id: str, ttl: float) -> None:
        self._hook("before", "send")
        with self._recorded("send", [(message.id, "")], message.delay):
            self.inner.put_expecting(message, reply_id, ttl)
        self._hook("after", "send")

    def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Any:
        step = "ack" if acknowledge else "receive"
        self._hook("before", step)
        with (
            self._recorded("ack", self._of(acknowledge)) as acks,
            self._recorded("receive", [("", "")], seconds) as look,
        ):
            leases = self.inner.lease(count, seconds, acknowledge=acknowledge, ids=ids)
            acks.outcomes = self._outcomes(leases.acknowledged)
            self._note(look, leases)
        self._hook("after", step)
        return leases

    def acknowledge(self, handles: Sequence[str]) -> Any:
        return self._settle("ack", handles, lambda: self.inner.acknowledge(handles))

    def release(self, handles: Sequence[str], delay: float) -> Any:
        return self._settle("nack", handles, lambda: self.inner.release(handles, delay), delay)

    def extend(self, handles: Sequence[str], seconds: float) -> Any:
        return self._settle("extend", handles, lambda: self.inner.extend(handles, seconds), seconds)

    def purge(self) -> Any:
        with self._recorded("purge", [("", "")]):
            return self.inner.purge()

    def listen(self) -> "RecordedListener":
        return RecordedListener(self, self.inner.listen())

    @contextmanager
    def together(self) -> Iterator[None]:
        """What was done inside a step that then failed is of unknown outcome."""
        calls = self._joint.calls = []
        try:
            with self.inner.together():
                yield
        except BaseException:
            for entered in reversed(calls):
                entered.outcomes = "unknown"
            raise
        finally:
            self._joint.calls = None
            for finish in reversed(getattr(self._joint, "open", None) or []):
                finish()
            self._joint.open = None

    def note(self, call: Any, leases: Any) -> None:
        self._note(call, leases)

    def recorded(self, op: str, subjects: Any, seconds: float = 0.0) -> Any:
        return self._recorded(op, subjects, seconds)

    @contextmanager
    def _recorded(self, op: str, subjects: Any, seconds: float = 0.0) -> Iterator[Any]:
        if not subjects:
            yield _Nothing()
            return
        calls = getattr(self._joint, "calls", None)
        manager = self.log.operation(op, subjects, seconds)
        call = manager.__enter__()
        try:
            yield call
        except BaseException as error:
            manager.__exit__(type(error), error, error.__traceback__)
            raise
        if calls is None:
            manager.__exit__(None, None, None)
        else:
            # Part of a bigger step: how it went is known when that has ended.
            calls.append(call)
            pending = getattr(self._joint, "open", None) or []
            pending.append(lambda: manager.__exit__(None, None, None))
            self._joint.open = pending

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

    def _note_unsure(self, handles: Sequence[str]) -> None:
        """A repeat is refused once the lease is over; the first attempt may have got there."""
        if handles:
            with self.log.operation("ack", self._of(handles)) as call:
                call.outcomes = "unknown"

    def _settle(
        self, op: str, handles: Sequence[str], step: Callable[[], Any], seconds: float = 0.0
    ) -> Any:
        self._hook("before", op)
        with self._recorded(op, self._of(handles), seconds) as call:
            done = step()
            call.outcomes = self._outcomes(done)
        self._hook("after", op)
        return done

    def _note(self, call: Any, leases: Any) -> None:
        call.got = [(one.id, one.handle, one.delivery_count) for one in leases.messages]
        self._ids.update({one.handle: one.id for one in leases.messages})

    def _of(self, handles: Sequence[str]) -> list[tuple[str, str]]:
        return [(self._ids.get(handle, ""), handle) for handle in handles]

    @staticmethod
    def _outcomes(done: Sequence[bool]) -> list[str]:
        return ["ok" if one else "failed" for one in done]


class AwaitedRecordedStore(RecordedStore):
    """An AsyncStore, with a history; a step that is cancelled is one of unknown outcome."""

    async def put(self, messages: Sequence[Any]) -> None:
        delay = max(message.delay for message in messages)
        with self._recorded("send", [(message.id, "") for message in messages], delay):
            await self.inner.put(messages)

    async def put_expecting(self, message: Any, reply_id: str, ttl: float) -> None:
        with self._recorded("send", [(message.id, "")], message.delay):
            await self.inner.put_expecting(message, reply_id, ttl)

    async def lease(
        self,
        count: int,
        seconds: float,
        *,
        acknowledge: Sequence[str] = (),
        ids: Sequence[str] | None = None,
    ) -> Any:
        with (
            self._recorded("ack", self._of(acknowledge)) as acks,
            self._recorded("receive", [("", "")], seconds) as look,
        ):
            leases = await self.inner.lease(count, seconds, acknowledge=acknowledge, ids=ids)
            acks.outcomes = self._outcomes(leases.acknowledged)
            self._note(look, leases)
        return leases

    async def purge(self) -> Any:
        with self._recorded("purge", [("", "")]):
            return await self.inner.purge()

    def together(self) -> Any:
        """Tasks share a thread: what is done inside stays single steps, as on every AsyncStore."""
        return self.inner.together()

    async def _settle(
        self, op: str, handles: Sequence[str], step: Callable[[], Any], seconds: float = 0.0
    ) -> Any:
        with self._recorded(op, self._of(handles), seconds) as call:
            done = await step()
            call.outcomes = self._outcomes(done)
        return done


class RecordedListener:
    def __init__(self, store: RecordedStore, inner: Any) -> None:
        self._store = store
        self._inner = inner
        self.interrupt, self.close = inner.interrupt, inner.close

    def lease(self, count: int, seconds: float, wait: float) -> Any:
        with self._store.recorded("receive", [("", "")], seconds) as look:
            leases = self._inner.lease(count, seconds, wait)
            self._store.note(look, leases)
        return leases

    async def lease_async(self, count: int, seconds: float, wait: float) -> Any:
        with self._store.recorded("receive", [("", "")], seconds) as look:
            leases = await self._inner.lease_async(count, seconds, wait)
            self._store.note(look, leases)
        return leases


class _Nothing:
    outcomes: Any = "ok"
