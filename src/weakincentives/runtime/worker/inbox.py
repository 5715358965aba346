"""The mailbox that a worker serves, reduced to what a worker needs from it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.leases.extender import Lease, LeaseExtender, LeaseExtenderConfig
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    Limits,
    Message,
    ReceiptHandleExpiredError,
    UnsupportedOperationError,
)
from weakincentives.runtime.mailbox.cancel import lease_states
from weakincentives.runtime.mailbox.limits import is_number
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.message import Carried
from weakincentives.runtime.mailbox.receive import exchange_now
from weakincentives.runtime.mailbox.seam.store import Store
from weakincentives.runtime.mailbox.seam.waiting import StopSignal
from weakincentives.runtime.mailbox.seam.worker_table import WorkerTable, lists_workers

from .decide import Counts

__all__ = ["Inbox", "acknowledge_unreplied", "check_receive"]

SHORTEST_LEASE = 0.05
"""A shorter lease would be over before it could be extended."""

Hold: TypeAlias = Callable[[Any, LeaseExtenderConfig], Lease]
"""Starts extending the lease of a message, and returns the lease."""


class Inbox:
    """What a worker needs from the mailbox that it serves.

    The methods that settle messages are coroutines: a thread runs them to their end, an event loop
    awaits them. In this class they block their thread. A thread receives for every message, so
    `exchange` is a plain method, which is faster.
    """

    name: str
    limits: Limits
    store: Store | None
    """The store that messages are leased from; None if the mailbox is of another package."""
    undoes: bool
    """Whether giving back what was not run leaves no trace."""
    counts_nacks: bool
    carries: bool
    """Whether an answer can be sent in the step that acknowledges its message."""

    def __init__(self, mailbox: StoreMailbox[Any, Any]) -> None:
        self._mailbox = mailbox
        self.name = mailbox.name
        self.limits = mailbox.limits
        self.store = mailbox.store
        self.undoes = mailbox.capabilities.uncounted_releases
        self.counts_nacks = mailbox.capabilities.nack_counts
        self.carries = mailbox._carrier is not None

    @property
    def closed(self) -> bool:
        """Whether the mailbox is closed, so that no message will come."""
        return self._mailbox.closed

    @property
    def dispatcher(self) -> Dispatcher | None:
        """Who is told of the mailbox's events."""
        return self._mailbox.dispatcher

    @property
    def body_type(self) -> Any:
        """The declared type of the bodies; None if there is none, and a loop may bind it later."""
        return self._mailbox.body_type

    @property
    def mailbox(self) -> Any:
        """The mailbox that is served."""
        return self._mailbox

    def check(self, count: int, visibility: float, wait: float) -> tuple[int, float, float]:
        """Check the arguments of `exchange`; raise if they exceed the limits.

        Returns them, with seconds rounded up if the backend needs whole seconds.
        """
        if self.store is not None and self._mailbox._plain is None:
            raise UnsupportedOperationError(
                f"{self._mailbox!r} has an asyncio client: a worker needs an async handler for it"
            )
        return check_receive(self.limits, count, *rounded_up(self.limits, visibility, wait))

    def holder(self, extender: LeaseExtender) -> Hold:
        """Return the function that starts extending a message's lease.

        Raises `UnsupportedOperationError` if no thread can extend it.
        """
        if extender.config.enabled:
            self._mailbox._open_lease_keeper()
        return extender.hold

    def worker_table(self) -> WorkerTable | None:
        """Return where the backend lists its workers; None if it has no list for threads."""
        if self.store is None or not lists_workers(self.store):
            return None
        try:
            # A store whose steps block: a thread takes them.
            store = self._mailbox._open_lease_keeper()
        except UnsupportedOperationError:
            return None
        return store.worker_table if lists_workers(store) else None

    def let_go(self) -> None:
        """Close the connection that extends leases; another run opens it again."""
        self._mailbox._close_lease_keeper()

    def exchange(
        self,
        done: Sequence[Any],
        count: int,
        visibility: float,
        wait: float,
        stop: StopSignal,
        carried: Sequence[Carried] = (),
    ) -> Sequence[Any]:
        """Acknowledge what is done and receive what is next, in one step where possible."""
        return exchange_now(self._mailbox, done, count, visibility, wait, carried, stop)

    def counts(self, message: Any) -> Counts:
        """Return how often a message was delivered and nacked."""
        return Counts(message.delivery_count, message.nack_count if self.counts_nacks else None)

    def route(self, message: Any) -> str | None:
        """Return how the sender wants to be answered: ``channel``, ``reply_to`` or not at all.

        Raises if that cannot be resolved.
        """
        envelope = message._envelope
        if envelope.reply_id is not None:
            return "channel"
        if envelope.reply_to is None:
            return None
        return None if message.reply_to is None else "reply_to"

    def age(self, message: Any) -> float:
        """Return how many seconds ago a message was sent."""
        return self._mailbox.store.clock.time() - message._leased.enqueued_at  # type: ignore[no-any-return]

    def reply_expires_in(self, message: Any) -> float:
        """Return the seconds for which the caller still waits; infinite if there is none."""
        row = message._reply_row
        return math.inf if row is None else row.expires_at - self._mailbox.store.clock.time()

    def carried(self, message: Any, value: Any, id: str | None, to: Any) -> Carried | None:
        """Return an answer to send in the step that acknowledges its message; None if impossible.

        It goes to the mailbox ``to``; if that is None, to the sender.
        """
        if to is not None:
            return message._carried_to(to, value, id)  # type: ignore[no-any-return]
        return message._carried_reply(value, message_id=id)  # type: ignore[no-any-return]

    def can_fail_reply(self, message: Any) -> bool:
        """Return whether the reply that a caller waits for can be settled as failed."""
        return True

    def keeps_parts_as_objects(self, message: Any) -> bool:
        """Return whether the parts of its reply are kept as objects of this process."""
        return message._mailbox._replies().table.keeps_objects  # type: ignore[no-any-return]

    async def emit(self, message: Any, payloads: Sequence[Any]) -> bool:
        """Add parts to the reply; False if nobody waits for it, or this delivery is over."""
        return await message._emit(payloads)  # type: ignore[no-any-return]

    async def is_cancelled(self, message: Any) -> bool:
        """Ask the queue whether the message was cancelled."""
        (state,) = await lease_states(message._mailbox, message._mailbox.store, [message])
        return state == "cancelled"

    async def start(self, message: Any) -> bool:
        """Record the start for the caller who waits; False if the reply is no longer awaited."""
        return await message._start()  # type: ignore[no-any-return]

    async def reply(self, message: Any, value: Any, id: str | None) -> Any:
        """Reply to the sender; return the mailbox that got it, None if a waiting caller did.

        If it is sent twice with the same ``id``, that is one reply. A waiting caller needs no
        ``id``.
        """
        message.reply(value, message_id=id)
        return None if id is None else message.reply_to

    async def send(self, mailbox: Any, body: Any, id: str | None) -> None:
        """Send to another mailbox."""
        mailbox.send(body, message_id=id)

    async def acknowledge(self, messages: Sequence[Any]) -> None:
        """Acknowledge; those whose lease had ended are not finalized afterwards."""
        self._mailbox.acknowledge_batch(messages)

    async def remove(self, message: Any) -> None:
        """Acknowledge a message although its sender waits for a reply that will not come."""
        acknowledge_unreplied(message)

    async def nack(self, message: Any, delay: float) -> None:
        """Give back a message that failed."""
        message.nack(visibility_timeout=self.limits.rounded(delay))

    async def put_off(self, message: Any, delay: float) -> None:
        """Give back a message because its handler wants it again after the delay."""
        if not self._mailbox.release_batch([message], self.limits.rounded(delay), "put_off")[0]:
            raise ReceiptHandleExpiredError(f"{message!r}: its lease has ended")

    async def undo(self, messages: Sequence[Any], delay: float) -> None:
        """Give back messages as if they had not been received, where that is possible.

        Those whose lease had ended are not finalized afterwards.
        """
        most, delay = self.limits.max_batch, self.limits.rounded(delay)
        for start in range(0, len(messages), most):
            self._mailbox.release_batch(messages[start : start + most], delay)

    async def undo_leases(self, handles: Sequence[str]) -> None:
        """Release leases as if they had never been taken; other handles are ignored."""
        if handles and self.store is not None:
            await self.store.release(handles, 0.0, "undone")


def rounded_up(limits: Limits, visibility: float, wait: float) -> tuple[float, float]:
    """Round the seconds up if the backend needs whole seconds."""
    if not limits.fractions and is_number(visibility) and is_number(wait):
        return math.ceil(visibility), math.ceil(wait)
    return visibility, wait


def check_receive(
    limits: Limits, count: object, visibility: object, wait: object
) -> tuple[int, float, float]:
    """Check the arguments of a loop's receives."""
    asked = limits.receive(count, visibility, wait)
    if asked[1] < SHORTEST_LEASE:
        raise InvalidParameterError(
            f"visibility_timeout must be at least {SHORTEST_LEASE:g} seconds in a loop, or a "
            f"job would be given to others while it runs; not {visibility!r}"
        )
    return asked


def acknowledge_unreplied(message: Message[Any, Any]) -> None:
    """Acknowledge a message of our own class although its sender waits for a reply."""
    plain = message._mailbox._plain
    assert plain is not None, "a store that a thread has received from has plain steps"
    (done,) = plain.acknowledge_now([message.receipt_handle])
    message._settle("acknowledged", done)
