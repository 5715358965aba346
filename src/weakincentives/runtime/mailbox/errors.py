"""Every error of mailboxes and replies; each docstring is the default message."""

from collections.abc import Sequence
from typing import Any

from weakincentives.errors import WinkError

__all__ = [
    "InvalidParameterError",
    "MailboxClosedError",
    "MailboxConnectionError",
    "MailboxError",
    "MailboxFullError",
    "MailboxResolutionError",
    "MessageFinalizedError",
    "NoReplyChannelError",
    "NoRoomError",
    "PayloadTooLargeError",
    "QueueNotEmptyError",
    "ReceiptHandleExpiredError",
    "ReentrantStepError",
    "ReplyAlreadySentError",
    "ReplyCancelledError",
    "ReplyError",
    "ReplyExpectedError",
    "ReplyFailedError",
    "ReplyNotAvailableError",
    "ReplyNotFoundError",
    "ReplyTimeoutError",
    "SerializationError",
    "UnsupportedOperationError",
]


class MailboxError(WinkError):
    """Something went wrong with a mailbox."""

    sent_ids: Sequence[str] = ()
    """After a batch that failed: the ids of the messages that were sent."""
    sent_replies: Sequence[Any] = ()
    """After a `send_batch_expecting_replies` that failed: the replies to these messages."""


class ReceiptHandleExpiredError(MailboxError):
    """The lease on this message has ended; another consumer may have it now."""


class MailboxFullError(MailboxError):
    """The queue has no room for these messages; none of them was sent."""


class NoRoomError(MailboxFullError):
    """The disk or the server is full; nothing was done. Try again when there is room."""


class SerializationError(MailboxError):
    """The body cannot be written as JSON, or cannot be read as the declared type."""


class MailboxConnectionError(MailboxError):
    """The backend cannot be reached."""


class MailboxResolutionError(MailboxError):
    """No mailbox is known under this name."""

    def __init__(self, identifier: str, message: str | None = None) -> None:
        super().__init__(message or f"no mailbox is known as {identifier!r}")
        self.identifier = identifier

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled from its args, and these are the message alone.
        return type(self), (self.identifier, str(self))


class MessageFinalizedError(MailboxError):
    """The message was acknowledged or given back; no more replies can be sent for it."""


class ReplyNotAvailableError(MailboxError):
    """The sender of this message gave no address for replies."""


class InvalidParameterError(MailboxError, ValueError):
    """This mailbox does not accept an argument; nothing was done."""


class MailboxClosedError(MailboxError):
    """The mailbox was closed; open another one to send more."""


class ReentrantStepError(MailboxError):
    """A signal handler used a queue in the middle of a step of its own thread; nothing was done."""


class PayloadTooLargeError(SerializationError):
    """The message is larger than this mailbox accepts; send a reference to it instead."""


class UnsupportedOperationError(MailboxError):
    """This mailbox cannot do that."""


class QueueNotEmptyError(MailboxError):
    """The queue has messages, so it was not deleted."""

    def __init__(self, queue: str, pending: int, in_flight: int, delayed: int) -> None:
        total = pending + in_flight + delayed
        counts = f"{pending} pending, {in_flight} in flight, {delayed} delayed"
        super().__init__(
            f"{queue!r} was not deleted, because it has {total} message{'s' if total > 1 else ''} "
            f"({counts}); force=True deletes them too"
        )
        self.queue = queue
        self.pending = pending
        self.in_flight = in_flight
        self.delayed = delayed

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled from its args, and these are the message alone.
        return type(self), (self.queue, self.pending, self.in_flight, self.delayed)


class ReplyError(WinkError):
    """Something went wrong with a reply."""


class ReplyTimeoutError(ReplyError, TimeoutError):
    """No reply came in time."""


class ReplyCancelledError(ReplyError):
    """The reply was cancelled by the caller."""


class ReplyFailedError(ReplyError):
    """The job failed for good, so that no reply comes."""

    def __init__(
        self,
        reply_id: str,
        *,
        error_type: str,
        reference: str = "",
        dead_letter_id: str | None = None,
        detail: str | None = None,
    ) -> None:
        text = f"the job of reply {reply_id} failed with {error_type}"
        if detail is not None:
            text = f"{text}: {detail}"
        where = f"; its message is dead letter {dead_letter_id}" if dead_letter_id else ""
        super().__init__(f"{text} (ref {reference}){where}")
        self.reply_id = reply_id
        self.error_type = error_type
        self.reference = reference
        """What the log of the worker names the failure by."""
        self.dead_letter_id = dead_letter_id
        self.detail = detail
        """The text of the error, if the worker has ``error_detail="text"``."""

    def __reduce__(self) -> tuple[Any, ...]:
        # An exception is unpickled from its args, and these are the message alone.
        facts = (self.error_type, self.reference, self.dead_letter_id, self.detail)
        return _failed_again, (type(self), self.reply_id, *facts)


def _failed_again(kind: type[ReplyFailedError], reply_id: str, *facts: Any) -> ReplyFailedError:
    names = ("error_type", "reference", "dead_letter_id", "detail")
    return kind(reply_id, **dict(zip(names, facts, strict=True)))


class ReplyNotFoundError(ReplyError):
    """There is no reply with this id: it was read and removed, has expired, or never existed."""


class ReplyAlreadySentError(ReplyError):
    """This message was already replied to; it takes exactly one reply."""


class ReplyExpectedError(ReplyError):
    """The sender waits for a reply: call reply(), or nack() to let another worker try."""


class NoReplyChannelError(ReplyError, ReplyNotAvailableError):
    """The sender of this message does not wait for a reply."""
