"""Adapts mailboxes of other packages to the `Inbox` that a worker serves.

Such a mailbox needs only `receive`, and its messages need only `id`, `body` and `acknowledge`.
Whatever else they offer is used.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.leases.extender import Lease, LeaseExtender, LeaseExtenderConfig
from weakincentives.runtime.mailbox import Limits, Message, ReceiptHandleExpiredError
from weakincentives.runtime.mailbox.mailbox import StoreMailbox
from weakincentives.runtime.mailbox.message import Carried
from weakincentives.runtime.mailbox.seam.optional_protocols import IdKeeper, keeps_ids
from weakincentives.runtime.mailbox.seam.store import Store
from weakincentives.runtime.mailbox.seam.waiting import StopSignal

from .decide import Counts
from .inbox import Hold, Inbox, acknowledge_unreplied

__all__ = ["ForeignInbox", "ForeignMessage", "id_keeper_of", "inbox_of", "is_ours"]

LONGEST_WAIT = 1.0
"""The longest wait of one receive, because it cannot be interrupted."""


def is_ours(mailbox: object) -> bool:
    """Return whether a mailbox is one of this library's own."""
    return isinstance(mailbox, StoreMailbox)


def inbox_of(mailbox: Any) -> Inbox:
    """Return the inbox of a mailbox, ours or another package's."""
    return Inbox(mailbox) if is_ours(mailbox) else ForeignInbox(mailbox)


def id_keeper_of(mailbox: object) -> IdKeeper | None:
    """Return the store of a mailbox if it can forget the ids that were sent to it, else None."""
    store: Store | None = getattr(mailbox, "store", None)
    return store if store is not None and keeps_ids(store) else None


class ForeignMessage:
    """A message of another package's mailbox, with everything that a worker needs from it."""

    def __init__(self, original: Any) -> None:
        self.original = original
        self.settled = False
        """Whether this worker has settled it; the original may not record that."""

    @property
    def id(self) -> str:
        """The message's id."""
        id: str = self.original.id
        return id

    @property
    def body(self) -> Any:
        """The body of the original message."""
        return self.original.body

    @property
    def delivery_count(self) -> int:
        """How many times the message has been received; 1 if the mailbox does not count."""
        count: int = getattr(self.original, "delivery_count", 1)
        return count

    @property
    def attempts(self) -> int:
        """How many deliveries count as attempts; all of them if the mailbox does not say."""
        count: int = getattr(self.original, "attempts", self.delivery_count)
        return count

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the sender attached."""
        attributes: Mapping[str, str] = getattr(self.original, "attributes", None) or {}
        return attributes

    @property
    def enqueued_at(self) -> Any:
        """When the message was sent; None if the mailbox does not say."""
        return getattr(self.original, "enqueued_at", None)

    @property
    def is_finalized(self) -> bool:
        """Whether it was acknowledged or given back."""
        return self.settled or getattr(self.original, "is_finalized", False)

    def settle_by(self, call: Callable[[], object]) -> None:
        """Settle the message; nothing is raised if its lease has ended."""
        if self.is_finalized:
            return
        try:
            call()
        except ReceiptHandleExpiredError:
            return
        self.settled = True


class ForeignInbox(Inbox):
    """The inbox of another package's mailbox: it does one by one what ours do in one step."""

    store = None
    undoes = False
    carries = False

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox
        self.name = getattr(mailbox, "name", "-")
        self.limits = getattr(mailbox, "limits", None) or Limits()
        self.counts_nacks = getattr(getattr(mailbox, "capabilities", None), "nack_counts", True)

    @property
    def dispatcher(self) -> Dispatcher | None:
        """Who is told of the mailbox's events, None if it does not say."""
        return getattr(self._mailbox, "dispatcher", None)

    @property
    def closed(self) -> bool:
        """Whether the mailbox says that nothing more will come."""
        return bool(getattr(self._mailbox, "closed", False))

    @property
    def body_type(self) -> Any:
        """The type of the bodies, None if the mailbox does not say."""
        return getattr(self._mailbox, "body_type", None)

    def holder(self, extender: LeaseExtender) -> Hold:
        """Return a function that extends the lease of the original message."""

        def hold(message: ForeignMessage, config: LeaseExtenderConfig) -> Lease:
            return extender.hold(message.original, config)

        return hold

    def worker_table(self) -> None:
        """Return None: other packages list no workers."""

    def let_go(self) -> None:
        """Do nothing: each message extends its own lease, so there is nothing to close."""

    def exchange(
        self,
        done: Sequence[ForeignMessage],
        count: int,
        visibility: float,
        wait: float,
        stop: StopSignal,
        carried: Sequence[Carried] = (),
    ) -> Sequence[ForeignMessage]:
        """Acknowledge one by one, then receive, in waits of a second."""
        assert not carried, "nothing goes out with an acknowledgement here"
        self._acknowledge(done)
        while True:
            messages = self._mailbox.receive(
                max_messages=count,
                visibility_timeout=visibility,
                wait_time_seconds=min(wait, LONGEST_WAIT),
            )
            wait -= LONGEST_WAIT
            if messages or wait <= 0 or stop.is_set() or self.closed:
                return [ForeignMessage(message) for message in messages]

    def counts(self, message: ForeignMessage) -> Counts:
        """Return the counts, without nacks if the mailbox does not count them."""
        nacks = getattr(message.original, "nack_count", None) if self.counts_nacks else None
        return Counts(message.delivery_count, nacks)

    def route(self, message: ForeignMessage) -> str | None:
        """Ask the message."""
        expects = getattr(message.original, "expects_reply", None)
        if expects is not None and expects():
            return "channel"
        return None if getattr(message.original, "reply_to", None) is None else "reply_to"

    def age(self, message: ForeignMessage) -> float:
        """Return how many seconds ago a message was sent; 0 if the mailbox does not say."""
        sent = message.enqueued_at
        return 0.0 if sent is None else (datetime.now(UTC) - sent).total_seconds()

    def reply_expires_in(self, message: ForeignMessage) -> float:
        """Return infinity: the reply channel does not say how long its caller waits."""
        return math.inf

    def can_fail_reply(self, message: ForeignMessage) -> bool:
        """Return whether the message is ours, and only its mailbox is not."""
        return isinstance(message.original, Message)

    def keeps_parts_as_objects(self, message: ForeignMessage) -> bool:
        """Ask the message, which is ours."""
        return super().keeps_parts_as_objects(message.original)

    async def emit(self, message: ForeignMessage, payloads: Sequence[Any]) -> bool:
        """Add parts to the reply of a message that is ours."""
        return await super().emit(message.original, payloads)

    async def is_cancelled(self, message: ForeignMessage) -> bool:
        """Ask the queue of a message that is ours."""
        return self.can_fail_reply(message) and await super().is_cancelled(message.original)

    async def start(self, message: ForeignMessage) -> bool:
        """Ask the message's reply channel."""
        if isinstance(message.original, Message):
            return await message.original._start()
        return bool(message.original.reply_channel.is_open())

    async def reply(self, message: ForeignMessage, value: Any, id: str | None) -> Any:
        """Reply, under this id if the message is ours and only its mailbox is not."""
        original = message.original
        if isinstance(original, Message):
            return await super().reply(original, value, id)
        original.reply(value)
        return None

    async def acknowledge(self, messages: Sequence[ForeignMessage]) -> None:
        """Acknowledge one by one."""
        self._acknowledge(messages)

    async def remove(self, message: ForeignMessage) -> None:
        """Acknowledge a message although its sender waits for a reply."""
        original = message.original
        if isinstance(original, Message):
            acknowledge_unreplied(original)
        else:
            original.acknowledge()
            message.settled = True

    async def nack(self, message: ForeignMessage, delay: float) -> None:
        """Nack a message that failed; if it has no nack(), its lease runs out by itself."""
        self._nack(message, delay)
        message.settled = True

    async def put_off(self, message: ForeignMessage, delay: float) -> None:
        """Nack the message; the mailbox counts a failed delivery."""
        await self.nack(message, delay)

    async def undo(self, messages: Sequence[ForeignMessage], delay: float) -> None:
        """Nack the messages one by one; the mailbox counts each as a failed delivery."""
        for message in messages:
            message.settle_by(lambda message=message: self._nack(message, delay))  # type: ignore[misc]

    def _acknowledge(self, messages: Sequence[ForeignMessage]) -> None:
        for message in messages:
            message.settle_by(message.original.acknowledge)

    def _nack(self, message: ForeignMessage, delay: float) -> None:
        nack = getattr(message.original, "nack", None)
        if nack is not None:
            nack(visibility_timeout=self.limits.rounded(delay))
