"""Mailboxes on SQS."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic

from typing_extensions import TypeVar

from weakincentives.clock import Clock
from weakincentives.dispatch import Dispatcher
from weakincentives.runtime.mailbox import (
    Mailbox,
    MailboxResolver,
    MailboxStats,
    ReplyStore,
)
from weakincentives.runtime.mailbox.mailbox import MailboxOptions, StoreMailbox
from weakincentives.runtime.mailbox.seam.store import QueueStats
from weakincentives.serde import Codec

from .codec import GROUP_ATTRIBUTE, SQSSealer, check_group
from .queue_names import QueueUrls
from .store import DEAD_LETTER_ROOM, LARGEST, SQSStore

__all__ = ["SQSMailbox", "SQSMailboxFactory", "SQSStats"]

T = TypeVar("T")
R = TypeVar("R", default=None)


@dataclass(frozen=True, slots=True)
class SQSStats(MailboxStats):
    """Roughly how full a queue on SQS is, and its redrive policy."""

    redrive_policy: dict[str, Any] | None = None
    """The queue's RedrivePolicy, SQS's own dead-lettering; None if it has none."""


class SQSMailbox(StoreMailbox[T, R], Generic[T, R]):
    """A `Mailbox` on an SQS queue that exists, Standard or FIFO as its URL says.

    ``message_group_id`` is the group of all messages, or a function from a body to its group; a
    message with an attribute of that name is in that group instead. By default a FIFO queue is one
    group, in strict order, one batch at a time, and a Standard queue has no groups.
    ``max_bytes`` bounds a message: unless said otherwise, a little below SQS's own 1 MiB, so that
    what can be sent can be dead-lettered, with the evidence, into a queue on SQS.
    ``docs/aws.md`` says what SQS does not promise.
    """

    def __init__(
        self,
        queue_url: str,
        client: Any,
        *,
        body_type: Any = None,
        reply_type: Any = None,
        reply_resolver: MailboxResolver | None = None,
        reply_store: ReplyStore[Any] | None = None,
        message_group_id: str | Callable[[Any], str | None] | None = None,
        max_bytes: int | None = None,
        name: str | None = None,
        dispatcher: Dispatcher | None = None,
        clock: Clock | None = None,
    ) -> None:
        by_body = message_group_id if callable(message_group_id) else None
        fixed = None if by_body else message_group_id
        store = SQSStore(
            queue_url,
            client,
            name=name,
            group=None if fixed is None else check_group(fixed),
            ordered=by_body is None,
            max_bytes=LARGEST - DEAD_LETTER_ROOM if max_bytes is None else max_bytes,
            clock=clock,
        )

        def sealer_for(declared: Any) -> SQSSealer:
            return SQSSealer(Codec(declared), store.limits.max_bytes, by_body)

        options = MailboxOptions(body_type, reply_type, reply_resolver, reply_store, dispatcher)
        super().__init__(store, sealer_for, options)
        self._queue = store

    def send(
        self,
        body: T,
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
        attributes: Mapping[str, str] | None = None,
        message_id: str | None = None,
        message_group_id: str | None = None,
    ) -> str:
        """Store a message, in a group if one is named, and return its id."""
        return super().send(
            body,
            delay_seconds=delay_seconds,
            reply_to=reply_to,
            attributes=_grouped(attributes, message_group_id),
            message_id=message_id,
        )

    async def send_async(
        self,
        body: T,
        *,
        delay_seconds: float = 0,
        reply_to: Mailbox[R, None] | None = None,
        attributes: Mapping[str, str] | None = None,
        message_id: str | None = None,
        message_group_id: str | None = None,
    ) -> str:
        """Do what `send` does."""
        return await super().send_async(
            body,
            delay_seconds=delay_seconds,
            reply_to=reply_to,
            attributes=_grouped(attributes, message_group_id),
            message_id=message_id,
        )

    def stats(self) -> SQSStats:
        """Count the messages by state, approximately; includes the redrive policy."""
        return self._stats(self._run("stats", self.store.stats))

    async def stats_async(self) -> SQSStats:
        """Do what `stats` does."""
        return self._stats(await self._run_async(self.store.stats))

    def _stats(self, counts: QueueStats) -> SQSStats:
        return SQSStats(*counts, self._queue.redrive_policy)


def _grouped(attributes: Mapping[str, str] | None, group: str | None) -> Mapping[str, str] | None:
    """Return the attributes of a message with its group."""
    if group is None:
        return attributes
    return {**(attributes or {}), GROUP_ATTRIBUTE: check_group(group)}


class SQSMailboxFactory:
    """Makes mailboxes from the names of queues; ``prefix`` is put before each name.

    Whoever sends a message chooses its ``reply_to``: give a resolver that uses this factory an
    ``allow`` list.
    """

    def __init__(self, client: Any, *, prefix: str = "") -> None:
        self._client = client
        self._urls = QueueUrls(client, prefix)

    def create(self, identifier: str) -> SQSMailbox[Any, None]:
        """Return a mailbox of the queue of this name, which must exist."""
        return SQSMailbox(self._urls.find(identifier), self._client, name=identifier)
