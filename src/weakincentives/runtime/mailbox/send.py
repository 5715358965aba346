"""Sending: a message is checked and sealed before anything is stored."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from weakincentives.dispatch import has_subscribers, publish
from weakincentives.error_text import error_type
from weakincentives.ids import SequelId, new_id, new_ids
from weakincentives.runtime.mailbox.replies.reply import PendingReply
from weakincentives.runtime.mailbox.replies.status import message_of
from weakincentives.runtime.mailbox.replies.typed_reply_table import TypedReplyTable
from weakincentives.runtime.mailbox.seam.optional_protocols import NewReply
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow, ReplyState
from weakincentives.runtime.mailbox.seam.store import REMEMBER_IDS, REMEMBER_SEQUELS, Outgoing

from .cause import CAUSE
from .envelope import Envelope
from .errors import InvalidParameterError, MailboxClosedError, MailboxError
from .events import MessageSending, MessageSent, SendFailed
from .limits import check_id, check_positive

if TYPE_CHECKING:
    from weakincentives.runtime.mailbox.seam.reply_table import ReplyTable

    from .api import Mailbox
    from .mailbox import StoreMailbox

__all__ = [
    "not_sent",
    "outgoing",
    "outgoing_batch",
    "send_batch",
    "send_batch_expecting_replies",
    "send_expecting_reply",
    "send_replay",
    "sent",
    "stored_of",
]

Put: TypeAlias = Callable[[Sequence[Outgoing]], Awaitable[int | None]]
"""Stores messages, as `Store.put` does."""

DEFAULT_TIMEOUT = 300.0
"""How long a reply is reopened for if nobody knows any more how long its caller would wait."""


def outgoing_batch(
    box: "StoreMailbox[Any, Any]",
    bodies: Sequence[Any],
    delay_seconds: float,
    reply_to: "Mailbox[Any, None] | None",
    message_ids: Sequence[str] | None = None,
    *,
    expects_replies: bool = False,
    reply_timeout: float | None = None,
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
    given, ids = message_ids is not None, message_ids or new_ids(len(bodies))
    replies: Sequence[str | None] = (
        new_ids(len(bodies)) if expects_replies else [None] * len(bodies)
    )
    added = _announced(box, ids, None) if ids and box.dispatcher is not None else None
    more: tuple[Any, ...] = (None, reply_timeout)
    try:
        return [
            outgoing(
                box, body, delay_seconds, reply_to, added, id if given else None, reply, id, *more
            )
            for body, id, reply in zip(bodies, ids, replies, strict=True)
        ]
    except Exception as error:
        not_sent(box, ids, error)
        raise


class SentIds(list[str]):
    """The ids of a batch that was sent."""

    stored: int | None = 0
    """How many messages are new, because their ids were not known; None if unknown."""


def stored_of(ids: Sequence[str]) -> int | None:
    """Return how many messages of a batch are new; None if its mailbox does not tell."""
    return ids.stored if isinstance(ids, SentIds) else None


async def send_batch(
    box: "StoreMailbox[Any, Any]", messages: Sequence[Outgoing], put: Put | None = None
) -> list[str]:
    """Store a batch, in as many steps as the backend needs; return the ids."""
    put = put or box.store.put
    size = box.limits.max_send_batch
    ids = SentIds()
    for start in range(0, len(messages), size):
        part = messages[start : start + size]
        with _part_of(box, messages, ids):
            added = await put(part)
        if ids.stored is not None:
            ids.stored = None if added is None else ids.stored + added
        ids += [sent(box, message) for message in part]
    return ids


@contextmanager
def _part_of(
    box: "StoreMailbox[Any, Any]", messages: Sequence[Outgoing], sent_ids: Sequence[str]
) -> Iterator[None]:
    """Add the messages of a batch that were sent before an error to that error."""
    try:
        yield
    except Exception as error:
        # A backend whose steps are not all or nothing says what became of each message.
        of_step = [*filter(_is_id, _results(error))]
        rest = messages[len(sent_ids) :]
        if of_step:
            done = set(of_step)
            for message in (message for message in rest if message.id in done):
                sent(box, message)
            rest = [message for message in rest if message.id not in done]
        not_sent(box, [message.id for message in rest], error)
        if not isinstance(error, MailboxError):
            raise
        error.sent_ids = (*sent_ids, *of_step)
        if sent_ids:
            error.add_note(
                f"{len(sent_ids)} of {len(messages)} messages were sent before this error; "
                f"its sent_ids has their ids"
            )
        raise


def _results(error: Exception) -> Sequence[object]:
    """Return what a backend whose steps are not all or nothing says of each message."""
    results: Sequence[object] = getattr(error, "results", ())
    return results


def _is_id(result: object) -> TypeGuard[str]:
    return isinstance(result, str)


def sent(box: "StoreMailbox[Any, Any]", message: Outgoing) -> str:
    """Publish that a message was stored, and return its id."""
    if box.dispatcher is not None:
        box._publish(MessageSent, message.id)
    return message.id


def not_sent(box: "StoreMailbox[Any, Any]", ids: Sequence[str], error: Exception) -> None:
    """Publish that messages could not be sealed or stored."""
    if box.dispatcher is not None:
        box._publish(SendFailed, tuple(ids), error_type(error))


def _announced(
    box: "StoreMailbox[Any, Any]", ids: Sequence[str], attributes: Mapping[str, str] | None
) -> Mapping[str, str] | None:
    """Return the attributes of messages with what subscribers add to them."""
    dispatcher = box.dispatcher
    if dispatcher is None or not has_subscribers(dispatcher, MessageSending):
        return attributes
    own = attributes or {}
    added = dict(own)
    publish(dispatcher, MessageSending(box.name, tuple(ids), added, CAUSE.get()))
    # A subscriber must not be able to make a send fail.
    known = {key: value if type(value) is str else own.get(key) for key, value in added.items()}
    return {key: value for key, value in known.items() if type(key) is type(value) is str} or None


async def send_expecting_reply(
    box: "StoreMailbox[Any, Any]",
    body: Any,
    reply_timeout: float,
    delay_seconds: float,
    attributes: Mapping[str, str] | None,
    keep: float | None,
) -> PendingReply[Any]:
    """Store a message and the pending reply to it."""
    times = _checked_times(box, reply_timeout, delay_seconds, keep)
    box._replies()  # raises if there is no place for one
    message = outgoing(
        box, body, delay_seconds, None, attributes, reply_id=new_id(), reply_timeout=_told(*times)
    )
    (reply,) = await _send_expecting(box, [message], *times)
    return reply


async def send_batch_expecting_replies(
    box: "StoreMailbox[Any, Any]",
    bodies: Sequence[Any],
    reply_timeout: float,
    delay_seconds: float,
    keep: float | None,
) -> list[PendingReply[Any]]:
    """Store several messages and the pending reply to each of them."""
    times = _checked_times(box, reply_timeout, delay_seconds, keep)
    box._replies()
    messages = outgoing_batch(
        box, bodies, delay_seconds, None, expects_replies=True, reply_timeout=_told(*times)
    )
    return await _send_expecting(box, messages, *times)


def _checked_times(
    box: "StoreMailbox[Any, Any]", reply_timeout: float, delay_seconds: float, keep: float | None
) -> tuple[float, float]:
    """Return how long a reply is waited for, and how long it is kept then."""
    check_positive("reply_timeout", reply_timeout)
    kept = 0.0 if keep is None else check_positive("keep", keep)
    if box.limits.delay(delay_seconds) >= reply_timeout:
        raise InvalidParameterError(
            f"delay_seconds must be less than reply_timeout, or no caller waits any more when the "
            f"message can be received: delay_seconds is {delay_seconds!r}, "
            f"reply_timeout {reply_timeout!r}"
        )
    return reply_timeout, kept


def _told(reply_timeout: float, keep: float) -> float | None:
    """Return how long the message says that its caller waits.

    A worker that is told this does not look into the reply, and so does not learn for how long that
    is kept, which a dead letter must know.
    """
    return None if keep else reply_timeout


async def _send_expecting(
    box: "StoreMailbox[Any, Any]", messages: Sequence[Outgoing], ttl: float, keep: float
) -> list[PendingReply[Any]]:
    replies = box._replies()
    handles: list[PendingReply[Any]] = [
        PendingReply(
            replies, str(m.reply_id), message_id=m.id, is_asker=True, store_of=box._store_of
        )
        for m in messages
    ]
    try:
        await send_batch(box, messages, partial(_put_expecting, box, replies, ttl, keep))
    except MailboxError as error:
        # These jobs will run, and nobody else has the ids of the replies to them.
        ids = set(error.sent_ids)
        error.sent_replies = [handle for handle in handles if handle.message_id in ids]
        raise
    return handles


async def _put_expecting(
    box: "StoreMailbox[Any, Any]",
    replies: TypedReplyTable,
    ttl: float,
    keep: float,
    messages: Sequence[Outgoing],
) -> int | None:
    table, maker = replies.table, box._reply_maker
    new = [NewReply(str(m.reply_id), ttl, box._owner_of_reply(m.id), keep) for m in messages]
    if maker is not None:
        await maker.put_expecting(messages, table, new)
        return len(messages)
    for reply in new:
        await table.create(*reply)
    try:
        return await box.store.put(messages)
    except Exception as error:  # interrupted or cancelled, it must end now: replies expire anyway
        with suppress(MailboxError):  # what the sender must know is why nothing was sent
            await _delete_unsent(table, new, _results(error))
        raise


async def _delete_unsent(
    table: "ReplyTable", replies: Sequence[NewReply], results: Sequence[object]
) -> None:
    """Delete the replies to those messages of a step that were not sent."""
    for reply, result in zip_longest(replies, results):
        if reply is not None and not _is_id(result):
            await table.delete(reply.id)


async def send_replay(
    box: "StoreMailbox[Any, Any]",
    body: Any,
    reply_to: "Mailbox[Any, None] | None",
    attributes: Mapping[str, str] | None,
    message_id: str,
    origin: str,
    reply: "NewReply | None",
) -> None:
    """Send the message of a dead letter again; the caller who waited for it is answered after all.

    ``reply.owner`` is the id of the message in the letter: a reply of another one is left alone. If
    ``reply.ttl`` is 0, the reply's own one counts.
    """
    table, maker, opened = box._reply_table, box._reply_maker, None
    if reply is not None and table is not None:
        row, owner = await table.get(reply.id), box._owner_of_reply(message_id)
        opened = _reply_to_open(row, reply, owner)
        if row is not None and row.owner == owner:
            # A replay that was killed has opened it, and most likely sent this very message: its
            # caller may have been told how that ended, and its handler may be emitting parts.
            maker = None
        elif opened is not None and maker is None and not await table.reopen(*opened):
            opened = None  # before the message is sent: a worker must find it open
    reply_id = None if opened is None else opened.id
    message = outgoing(
        box, body, 0, reply_to, attributes, message_id, reply_id=reply_id, origin=origin
    )
    try:
        if maker is None or table is None or opened is None:
            await box.store.put((message,))
        else:
            await maker.put_reopening(message, table, opened)
    except Exception as error:
        not_sent(box, (message.id,), error)
        raise
    sent(box, message)


def _reply_to_open(row: ReplyRow | None, reply: NewReply, owner: str) -> NewReply | None:
    """Return the reply as it is to be opened for a replay; None if no answer may go there."""
    if row is None:
        return NewReply(reply.id, reply.ttl or DEFAULT_TIMEOUT, owner, reply.keep)
    message = message_of(row)
    if row.owner != owner and message is not None and message[1] != reply.owner:
        return None
    if row.state in (ReplyState.RESOLVED, ReplyState.CANCELLED):
        return None
    ttl = reply.ttl or row.ttl or DEFAULT_TIMEOUT
    return NewReply(reply.id, ttl, owner, reply.keep or row.keep)


def outgoing(
    box: "StoreMailbox[Any, Any]",
    body: Any,
    delay_seconds: float,
    reply_to: "Mailbox[Any, None] | None",
    attributes: Mapping[str, str] | None = None,
    message_id: str | None = None,
    reply_id: str | None = None,
    new: str | None = None,
    origin: str | None = None,
    reply_timeout: float | None = None,
) -> Outgoing:
    """Check everything and seal the message; nothing has happened if this raises.

    ``message_id`` is an id that the sender chose; without one, the message gets the id ``new``,
    which it has if it is one of a batch.
    """
    if box.closed:
        raise MailboxClosedError(f"{box!r}: nothing was sent")
    delay = box.limits.delay(delay_seconds)
    if reply_to is not None and not isinstance(getattr(reply_to, "name", None), str):
        raise InvalidParameterError(f"reply_to must be a mailbox, not {reply_to!r:.100}")
    if attributes is not None:
        attributes = _checked_attributes(attributes)
    id = new or new_id() if message_id is None else check_id("message_id", message_id)
    types = box._types
    check = types.body_check
    if check is not None and type(body) not in check.classes:
        check.require(body)
    envelope = Envelope(body, None, 1, reply_to, reply_id, attributes, origin, reply_timeout)
    if box.dispatcher is None:
        payload = types.sealer.seal(envelope)
    else:
        payload = _sealed(box, envelope, id, in_batch=new is not None)
    if message_id is None:
        return Outgoing(id, payload, delay, reply_id=reply_id)
    remember = REMEMBER_SEQUELS if isinstance(message_id, SequelId) else REMEMBER_IDS
    return Outgoing(id, payload, delay, True, remember, reply_id)


def _sealed(box: "StoreMailbox[Any, Any]", envelope: Envelope, id: str, in_batch: bool) -> Any:
    """Seal a message of a mailbox that publishes its events."""
    if in_batch:  # it was announced with the others
        return box._types.sealer.seal(envelope)
    envelope.attributes = _announced(box, (id,), envelope.attributes)
    try:
        return box._types.sealer.seal(envelope)
    except Exception as error:
        not_sent(box, (id,), error)
        raise


def _checked_attributes(attributes: object) -> Mapping[str, str]:
    if not isinstance(attributes, Mapping) or not all(
        isinstance(key, str) and isinstance(value, str) for key, value in attributes.items()
    ):
        raise InvalidParameterError(f"attributes must map text to text, not {attributes!r:.100}")
    # Plain text even if it is a subclass, such as an enum: drivers accept nothing else.
    return {str.__str__(key): str.__str__(value) for key, value in attributes.items()}
