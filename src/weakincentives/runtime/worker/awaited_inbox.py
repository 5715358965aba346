"""The mailbox that a worker serves, for a worker that runs in an event loop."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

from weakincentives.runtime.mailbox import ReceiptHandleExpiredError
from weakincentives.runtime.mailbox.message import Carried
from weakincentives.runtime.mailbox.seam.step_threads import hop
from weakincentives.runtime.mailbox.seam.waiting import StopSignal

from .foreign import ForeignInbox, ForeignMessage, is_ours
from .inbox import Inbox, check_receive, rounded_up

__all__ = ["AwaitedForeignInbox", "AwaitedInbox", "LoopInbox", "awaited_inbox_of"]


class AwaitedInbox(Inbox):
    """An `Inbox` whose steps suspend: the event loop serves other jobs meanwhile."""

    def check(self, count: int, visibility: float, wait: float) -> tuple[int, float, float]:
        """Check the arguments of `exchange_async`; the mailbox may have any kind of client."""
        return check_receive(self.limits, count, *rounded_up(self.limits, visibility, wait))

    async def exchange_async(
        self,
        done: Sequence[Any],
        count: int,
        visibility: float,
        wait: float,
        stop: StopSignal,
        carried: Sequence[Carried] = (),
    ) -> Sequence[Any]:
        """Acknowledge what is done and receive what is next, in one step where possible.

        With a ``count`` of 0 it only acknowledges.
        """
        held = [message for message in done if not message.is_finalized]
        return await self._mailbox._exchange_async(held, count, visibility, wait, carried, stop)

    async def emit(self, message: Any, payloads: Sequence[Any]) -> bool:
        """Add parts to the reply; False if nobody waits for it, or this delivery is over."""
        return await self._mailbox._run_async(lambda: message._emit(payloads))

    async def is_cancelled(self, message: Any) -> bool:
        """Ask the queue whether the message was cancelled."""
        return await self._mailbox._run_async(partial(super().is_cancelled, message))

    async def start(self, message: Any) -> bool:
        """Record the start for the caller who waits; False if the reply is no longer awaited."""
        if message._leased.reply is not None:  # the lease has recorded it
            return await message._start()  # type: ignore[no-any-return]
        return await self._mailbox._run_async(message._start)

    async def reply(self, message: Any, value: Any, id: str | None) -> Any:
        """Reply to the sender; return the mailbox that the reply went to, None for a caller."""
        await message.reply_async(value, message_id=id)
        return None if id is None else message.reply_to

    async def send(self, mailbox: Any, body: Any, id: str | None) -> None:
        """Send to another mailbox."""
        if is_ours(mailbox):
            await mailbox.send_async(body, message_id=id)
        else:
            await hop(partial(super().send, mailbox, body, id))

    async def acknowledge(self, messages: Sequence[Any]) -> None:
        """Acknowledge; those whose lease had ended are not finalized afterwards."""
        await self._mailbox.acknowledge_batch_async(messages)

    async def remove(self, message: Any) -> None:
        """Acknowledge a message although its sender waits for a reply that will not come."""
        handles, store = [message.receipt_handle], self._mailbox.store
        (done,) = await self._mailbox._run_async(lambda: store.acknowledge(handles))
        message._settle("acknowledged", done)

    async def nack(self, message: Any, delay: float) -> None:
        """Give back a message that failed."""
        await message.nack_async(visibility_timeout=self.limits.rounded(delay))

    async def put_off(self, message: Any, delay: float) -> None:
        """Give back a message because its handler wants it again after the delay."""
        delay = self.limits.rounded(delay)
        if not (await self._mailbox.release_batch_async([message], delay, "put_off"))[0]:
            raise ReceiptHandleExpiredError(f"{message!r}: its lease has ended")

    async def undo(self, messages: Sequence[Any], delay: float) -> None:
        """Give back messages as if they had not been received, where that is possible."""
        most, delay = self.limits.max_batch, self.limits.rounded(delay)
        for start in range(0, len(messages), most):
            await self._mailbox.release_batch_async(messages[start : start + most], delay)


class AwaitedForeignInbox(ForeignInbox):
    """The inbox of a mailbox that is not ours: each step blocks a thread of the executor."""

    async def exchange_async(
        self,
        done: Sequence[ForeignMessage],
        count: int,
        visibility: float,
        wait: float,
        stop: StopSignal,
        carried: Sequence[Carried] = (),
    ) -> Sequence[ForeignMessage]:
        """Acknowledge one by one, then receive."""
        if not count:
            await self.acknowledge(done)
            return ()
        return await asyncio.to_thread(self.exchange, done, count, visibility, wait, stop, carried)

    async def emit(self, message: ForeignMessage, payloads: Sequence[Any]) -> bool:
        """Add parts to the reply of a message that is ours."""
        return await hop(partial(super().emit, message, payloads))

    async def is_cancelled(self, message: ForeignMessage) -> bool:
        """Ask the queue of a message that is ours."""
        return await hop(partial(super().is_cancelled, message))

    async def start(self, message: ForeignMessage) -> bool:
        """Ask the message's reply channel."""
        return await hop(partial(super().start, message))

    async def reply(self, message: ForeignMessage, value: Any, id: str | None) -> Any:
        """Reply to the sender."""
        return await hop(partial(super().reply, message, value, id))

    async def send(self, mailbox: Any, body: Any, id: str | None) -> None:
        """Send to another mailbox."""
        await hop(partial(super().send, mailbox, body, id))

    async def acknowledge(self, messages: Sequence[ForeignMessage]) -> None:
        """Acknowledge one by one."""
        await hop(partial(super().acknowledge, messages))

    async def remove(self, message: ForeignMessage) -> None:
        """Acknowledge a message although its sender waits for a reply."""
        await hop(partial(super().remove, message))

    async def nack(self, message: ForeignMessage, delay: float) -> None:
        """Give back a message that failed."""
        await hop(partial(super().nack, message, delay))

    async def undo(self, messages: Sequence[ForeignMessage], delay: float) -> None:
        """Nack the messages one by one."""
        await hop(partial(super().undo, messages, delay))


LoopInbox: TypeAlias = AwaitedInbox | AwaitedForeignInbox


def awaited_inbox_of(mailbox: Any) -> LoopInbox:
    """Adapt a mailbox, ours or another."""
    return AwaitedInbox(mailbox) if is_ours(mailbox) else AwaitedForeignInbox(mailbox)
