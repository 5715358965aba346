"""The `Mailbox` protocol: what every mailbox can do."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from typing_extensions import TypeVar

from weakincentives.runtime.mailbox.replies.reply import Reply

from .limits import Limits
from .message import Message, Peeked

__all__ = ["Mailbox", "MailboxStats"]

T = TypeVar("T")
R = TypeVar("R", default=None)


@dataclass(frozen=True, slots=True)
class MailboxStats:
    """How full a mailbox is."""

    pending: int
    """Messages that can be received now."""
    in_flight: int
    """Messages leased to a consumer."""
    delayed: int
    """Messages that become visible later."""
    oldest_age_seconds: float | None
    """How long the oldest pending message has been in the queue; None if none is pending."""
    unreadable: int = 0
    """Records that were set aside because they cannot be leased; not counted in ``total``."""
    paused: bool = False
    """Whether the queue is paused, so that nothing is received from it."""

    @property
    def total(self) -> int:
        """All messages that were sent and not acknowledged."""
        return self.pending + self.in_flight + self.delayed


@runtime_checkable
class Mailbox(Protocol[T, R]):
    """A durable, typed queue: ``T`` is what is sent, ``R`` what workers reply.

    Every method that does I/O has a twin with the suffix ``_async``.
    """

    @property
    def name(self) -> str:
        """The queue's name."""
        ...

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        ...

    @property
    def limits(self) -> Limits:
        """The largest values that this mailbox accepts."""
        ...

    def send(
        self,
        body: T,
        *,
        delay_seconds: float = 0,
        reply_to: "Mailbox[R, None] | None" = None,
        attributes: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> str:
        """Store a message and return its id.

        ``message_id`` makes the send idempotent: the same id while the message is queued, or
        within five minutes of the first send, is the same message.
        """
        ...

    async def send_async(
        self,
        body: T,
        *,
        delay_seconds: float = 0,
        reply_to: "Mailbox[R, None] | None" = None,
        attributes: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> str: ...

    def send_batch(
        self,
        bodies: Sequence[T],
        *,
        delay_seconds: float = 0,
        reply_to: "Mailbox[R, None] | None" = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[str]:
        """Store several messages and return their ids.

        Up to a thousand messages (``limits.max_send_batch``) are stored in one step, all or none.
        A longer batch takes several steps, in order; if one of them fails, the error's ``sent_ids``
        lists the messages that were stored before. ``message_ids``, one for each body, make the
        batch idempotent, as ``message_id`` does for `send`.
        """
        ...

    async def send_batch_async(
        self,
        bodies: Sequence[T],
        *,
        delay_seconds: float = 0,
        reply_to: "Mailbox[R, None] | None" = None,
        message_ids: Sequence[str] | None = None,
    ) -> list[str]: ...

    def send_expecting_reply(
        self,
        body: T,
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        attributes: Mapping[str, str] | None = None,
        keep: float | None = None,
    ) -> Reply[R]:
        """Store a message and return a handle on the one reply to it.

        With ``keep``, the reply can be read for so many seconds after it was settled.
        """
        ...

    async def send_expecting_reply_async(
        self,
        body: T,
        *,
        reply_timeout: float = 300,
        delay_seconds: float = 0,
        attributes: Mapping[str, str] | None = None,
        keep: float | None = None,
    ) -> Reply[R]: ...

    def receive(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> Sequence[Message[T, R]]:
        """Lease up to ``max_messages`` for ``visibility_timeout`` seconds each.

        Waits up to ``wait_time_seconds`` for the first message, never to fill the batch.
        """
        ...

    async def receive_async(
        self,
        *,
        max_messages: int = 1,
        visibility_timeout: float = 30,
        wait_time_seconds: float = 0,
    ) -> Sequence[Message[T, R]]: ...

    def acknowledge_batch(self, messages: Sequence[Message[T, R]]) -> list[bool]:
        """Acknowledge several messages in one step; False where the lease had ended."""
        ...

    async def acknowledge_batch_async(self, messages: Sequence[Message[T, R]]) -> list[bool]: ...

    def reply(self, id: str) -> Reply[R]:
        """Return a handle on the reply with this id, which any process may use."""
        ...

    def cancel(self, message_id: str) -> bool:
        """Cancel a message: True if it was there, and so will not be run to its end."""
        ...

    async def cancel_async(self, message_id: str) -> bool: ...

    def purge(self) -> int:
        """Remove every message and return how many there were."""
        ...

    async def purge_async(self) -> int: ...

    def approximate_count(self) -> int:
        """Count all messages: pending, leased and delayed."""
        ...

    async def approximate_count_async(self) -> int: ...

    def stats(self) -> MailboxStats:
        """Count the messages by state."""
        ...

    async def stats_async(self) -> MailboxStats: ...

    def peek(self, limit: int = 10) -> list[Peeked[T]]:
        """Return messages that wait to be received, without receiving them."""
        ...

    async def peek_async(self, limit: int = 10) -> list[Peeked[T]]: ...

    def close(self) -> None:
        """Stop sending and receiving; wake every waiter. Received messages can still be settled."""
        ...

    # Not Self, or mypy cannot infer the arguments of ``box: Mailbox[T] = InMemoryMailbox("x")``.
    def __enter__(self) -> "Mailbox[T, R]": ...

    def __exit__(self, *exc: Any) -> None: ...
