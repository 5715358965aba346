"""Every error of mailboxes and replies; each docstring is the default message."""

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
    "PayloadTooLargeError",
    "ReceiptHandleExpiredError",
    "ReplyAlreadySentError",
    "ReplyCancelledError",
    "ReplyError",
    "ReplyExpectedError",
    "ReplyNotAvailableError",
    "ReplyTimeoutError",
    "SerializationError",
    "UnsupportedOperationError",
]


class MailboxError(WinkError):
    """Something went wrong with a mailbox."""


class ReceiptHandleExpiredError(MailboxError):
    """The lease on this message has ended; somebody else may have it now."""


class MailboxFullError(MailboxError):
    """The queue has no room; nothing was sent."""


class SerializationError(MailboxError):
    """The body cannot be written as JSON, or not be read as the declared type."""


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
    """The sender of this message named nowhere to reply to."""


class InvalidParameterError(MailboxError, ValueError):
    """An argument is outside what this mailbox accepts; nothing has happened."""


class MailboxClosedError(MailboxError):
    """The mailbox was closed; open another one to go on sending."""


class PayloadTooLargeError(SerializationError):
    """The message is larger than this mailbox accepts; send a reference to it instead."""


class UnsupportedOperationError(MailboxError):
    """This mailbox cannot do that."""


class ReplyError(WinkError):
    """Something went wrong with a reply."""


class ReplyTimeoutError(ReplyError, TimeoutError):
    """No reply came in time."""


class ReplyCancelledError(ReplyError):
    """The reply was cancelled by the caller."""


class ReplyAlreadySentError(ReplyError):
    """This message was already replied to; it takes exactly one reply."""


class ReplyExpectedError(ReplyError):
    """The sender waits for a reply: call reply(), or nack() to let somebody else try."""


class NoReplyChannelError(ReplyError, ReplyNotAvailableError):
    """The sender of this message does not wait for a reply."""
