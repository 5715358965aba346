"""Sending: everything is checked and sealed before anything happens."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from weakincentives.ids import new_id, new_ids

from .envelope import Envelope
from .errors import InvalidParameterError, MailboxClosedError
from .events import MessageSent
from .flow import Flow
from .limits import check_positive
from .replies import Desk, PendingReply
from .store import Outgoing, ReplyMaker

if TYPE_CHECKING:
    from .api import Mailbox
    from .typed import StoreMailbox

__all__ = ["outgoing", "outgoing_batch", "send_expecting_reply", "sent"]

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
    if bodies:
        box.limits.send_batch(len(bodies))
    elif box.closed:
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


def sent(box: "StoreMailbox[Any, Any]", message: Outgoing) -> str:
    """Tell that a message is stored, and return its id."""
    if box.dispatcher is not None:
        box.publish(MessageSent, message.id)
    return message.id


def send_expecting_reply(
    box: "StoreMailbox[Any, Any]",
    body: Any,
    reply_timeout: float,
    delay_seconds: float,
    attributes: Mapping[str, str] | None,
) -> Flow[PendingReply[Any]]:
    """Store a message and the place where its one reply will be."""
    check_positive("reply_timeout", reply_timeout)
    desk, reply_id = box.desk(), new_id()
    message = outgoing(box, body, delay_seconds, None, attributes, reply_id=reply_id)
    reply: PendingReply[Any] = PendingReply(desk, reply_id, reply_timeout)
    if isinstance(box.store, ReplyMaker) and box.store.is_beside(desk.table):
        yield box.step(box.store.put_expecting, message, reply_id, reply_timeout)
    else:
        yield from _create_and_put(box, desk, message, reply_id, reply_timeout)
    sent(box, message)
    return reply


def _create_and_put(
    box: "StoreMailbox[Any, Any]", desk: Desk, message: Outgoing, reply_id: str, timeout: float
) -> Flow[None]:
    with box.store.together():
        yield desk.step(desk.table.create, reply_id, timeout)
        try:
            yield box.step(box.store.put, (message,))
        except BaseException:
            yield desk.step(desk.table.delete, reply_id)
            raise


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

    ``message_id`` is one that the sender chose; without, the message gets the ``new`` one.
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
    payload = box.types.sealer.seal(Envelope(body, None, 1, reply_to, reply_id, attributes))
    return Outgoing(message_id or new or new_id(), payload, delay, message_id is not None)


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
    return dict(attributes)
