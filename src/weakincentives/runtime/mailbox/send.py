"""Sending: a message is checked and sealed before anything is stored."""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from weakincentives.ids import SequelId, new_id, new_ids
from weakincentives.runtime.mailbox.replies.reply import PendingReply
from weakincentives.runtime.mailbox.seam.store import REMEMBER_IDS, REMEMBER_SEQUELS, Outgoing

from .envelope import Envelope
from .errors import InvalidParameterError, MailboxClosedError, MailboxError
from .events import MessageSent
from .limits import check_positive

if TYPE_CHECKING:
    from .api import Mailbox
    from .mailbox import StoreMailbox

__all__ = [
    "outgoing",
    "outgoing_batch",
    "send_batch",
    "send_expecting_reply",
    "sent",
    "stored_of",
]

MESSAGE_ID = re.compile(r"[A-Za-z0-9_.:=-]{1,128}", re.ASCII)


def outgoing_batch(
    box: "StoreMailbox[Any, Any]",
    bodies: Sequence[Any],
    delay_seconds: float,
    reply_to: "Mailbox[Any, None] | None",
    message_ids: Sequence[str] | None = None,
) -> list[Outgoing]:
    """Check and seal several messages; nothing has happened if this raises."""
    if isinstance(bodies, str | bytes) or not isinstance(bodies, Sequence):
        raise InvalidParameterError(f"bodies must be a list, not {type(bodies).__name__}")
    if not bodies and box.closed:
        raise MailboxClosedError(f"{box!r}: nothing was sent")
    if message_ids is not None and len(message_ids) != len(bodies):
        raise InvalidParameterError(
            f"message_ids must be one for each of the {len(bodies)} bodies, not {len(message_ids)}"
        )
    given = message_ids is not None
    return [
        outgoing(box, body, delay_seconds, reply_to, None, id if given else None, None, id)
        for body, id in zip(bodies, message_ids or new_ids(len(bodies)), strict=True)
    ]


class SentIds(list[str]):
    """The ids of a batch that was sent."""

    stored: int | None = 0
    """How many messages are new, because their ids were not known; None if unknown."""


def stored_of(ids: Sequence[str]) -> int | None:
    """Return how many messages of a batch are new; None if its mailbox does not tell."""
    return ids.stored if isinstance(ids, SentIds) else None


async def send_batch(box: "StoreMailbox[Any, Any]", messages: Sequence[Outgoing]) -> list[str]:
    """Store a batch, in as many steps as the backend needs; return the ids."""
    size = box.limits.max_send_batch
    ids = SentIds()
    for start in range(0, len(messages), size):
        part = messages[start : start + size]
        with _part_of(messages, ids):
            added = await box.store.put(part)
        if ids.stored is not None:
            ids.stored = None if added is None else ids.stored + added
        ids += [sent(box, message) for message in part]
    return ids


@contextmanager
def _part_of(messages: Sequence[Outgoing], sent_ids: Sequence[str]) -> Iterator[None]:
    """Add the messages of a batch that were sent before an error to that error."""
    try:
        yield
    except MailboxError as error:
        # A backend whose steps are not all or nothing says what became of each message.
        of_step = (result for result in getattr(error, "results", ()) if isinstance(result, str))
        error.sent_ids = (*sent_ids, *of_step)
        if sent_ids:
            error.add_note(
                f"{len(sent_ids)} of {len(messages)} messages were sent before this error; "
                f"its sent_ids has their ids"
            )
        raise


def sent(box: "StoreMailbox[Any, Any]", message: Outgoing) -> str:
    """Publish that a message was stored, and return its id."""
    if box.dispatcher is not None:
        box._publish(MessageSent, message.id)
    return message.id


async def send_expecting_reply(
    box: "StoreMailbox[Any, Any]",
    body: Any,
    reply_timeout: float,
    delay_seconds: float,
    attributes: Mapping[str, str] | None,
) -> PendingReply[Any]:
    """Store a message and the pending reply to it."""
    check_positive("reply_timeout", reply_timeout)
    replies, reply_id = box._replies(), new_id()
    message = outgoing(box, body, delay_seconds, None, attributes, reply_id=reply_id)
    if message.delay >= reply_timeout:
        raise InvalidParameterError(
            f"delay_seconds must be less than reply_timeout, or no caller waits any more when the "
            f"message can be received: delay_seconds is {delay_seconds!r}, "
            f"reply_timeout {reply_timeout!r}"
        )
    reply: PendingReply[Any] = PendingReply(replies, reply_id, reply_timeout)
    owner, maker = box._owner_of_reply(message.id), box._reply_maker
    if maker is not None:
        await maker.put_expecting(message, replies.table, reply_id, reply_timeout, owner)
    else:
        await replies.table.create(reply_id, reply_timeout, owner)
        try:
            await box.store.put((message,))
        except Exception:  # interrupted or cancelled, it must end now: the reply expires by itself
            with suppress(MailboxError):  # what the sender must know is why nothing was sent
                await replies.table.delete(reply_id)
            raise
    sent(box, message)
    return reply


def outgoing(
    box: "StoreMailbox[Any, Any]",
    body: Any,
    delay_seconds: float,
    reply_to: "Mailbox[Any, None] | None",
    attributes: Mapping[str, str] | None = None,
    message_id: str | None = None,
    reply_id: str | None = None,
    new: str | None = None,
) -> Outgoing:
    """Check everything and seal the message; nothing has happened if this raises.

    ``message_id`` is an id that the sender chose; without one, the message gets the id ``new``.
    """
    if box.closed:
        raise MailboxClosedError(f"{box!r}: nothing was sent")
    delay = box.limits.delay(delay_seconds)
    if reply_to is not None and not isinstance(getattr(reply_to, "name", None), str):
        raise InvalidParameterError(f"reply_to must be a mailbox, not {reply_to!r:.100}")
    if attributes is not None:
        attributes = _checked_attributes(attributes)
    if message_id is not None:
        _check_message_id(message_id)
    types = box._types
    check = types.body_check
    if check is not None and type(body) not in check.classes:
        check.require(body)
    payload = types.sealer.seal(Envelope(body, None, 1, reply_to, reply_id, attributes))
    if message_id is None:
        return Outgoing(new or new_id(), payload, delay)
    remember = REMEMBER_SEQUELS if isinstance(message_id, SequelId) else REMEMBER_IDS
    # Plain text even if it is a subclass with another __str__, such as an enum.
    return Outgoing(str.__str__(message_id), payload, delay, True, remember)


def _check_message_id(message_id: object) -> None:
    if not isinstance(message_id, str) or not MESSAGE_ID.fullmatch(message_id):
        raise InvalidParameterError(
            f"message_id must be 1 to 128 characters of A-Z a-z 0-9 _ . : = -, "
            f"not {message_id!r:.150}"
        )


def _checked_attributes(attributes: object) -> Mapping[str, str]:
    if not isinstance(attributes, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in attributes.items()
    ):
        raise InvalidParameterError(f"attributes must map text to text, not {attributes!r:.100}")
    # Plain text even if it is a subclass, such as an enum: drivers accept nothing else.
    return {str.__str__(key): str.__str__(value) for key, value in attributes.items()}
