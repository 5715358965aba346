"""The dead letter: the record of a message that was given up."""

import logging
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic
from uuid import UUID

import msgspec
from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.error_text import described, error_type, stack_of
from weakincentives.ids import SequelId, derived_id
from weakincentives.logs import get_logger
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.runtime.mailbox.envelope import Envelope, ObjectSealer, Unreadable
from weakincentives.runtime.mailbox.seam.process_name import process_name
from weakincentives.runtime.mailbox.seam.reply_table import ReplyRow
from weakincentives.serde import Carrier

__all__ = [
    "DeadLetter",
    "age_of",
    "letter_fields",
    "letter_for",
    "log_processing",
    "request_id_of",
    "sequel_id",
]

logger = get_logger(__name__)

T = TypeVar("T", default=Any)

MAX_TRACE_ID = 256
TRACEPARENT = re.compile("[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
"""The trace context of the W3C: version, trace, parent and flags."""


@FrozenDataclass()
class DeadLetter(Carrier, Generic[T]):
    """A message that was given up, and the reason."""

    message_id: str
    """The original message's id."""
    if TYPE_CHECKING:
        body: T
        """The original body; None if it could not be read (see ``raw_payload``)."""
    else:
        body: T | None
    source_mailbox: str
    """The mailbox that the message came from."""
    delivery_count: int
    """How many times the message was received."""
    last_error: str
    """The message of the last error, redacted and bounded."""
    last_error_type: str
    """The full name of the last error's type."""
    dead_lettered_at: datetime
    first_received_at: datetime
    """When the message was received for the first time."""
    request_id: UUID | None = None
    """The id of the request in the body, if it has one."""
    reply_to: str | None = None
    """The mailbox that the sender named for replies."""
    trace_id: str | None = None
    """The trace that the message belongs to: its attribute ``trace_id``, unless that is too long,
    or else the trace of its ``traceparent``."""
    worker: str | None = None
    """The worker that gave up the message: host name and process id."""
    traceback: str | None = None
    """The traceback of the last error, redacted and bounded."""
    raw_payload: bytes | None = None
    """The whole payload as bytes, if the body could not be decoded."""
    body_type: str | None = None
    """The class name of the body, from the envelope."""
    attributes: dict[str, str] | None = None
    """The attributes that the sender attached to the message."""
    reply_id: str | None = None
    """The reply that a caller waits for; a replay answers it."""
    reply_timeout: float | None = None
    """For how many seconds that caller said it would wait."""
    reply_keep: float | None = None
    """For how many seconds the reply can be read after it was settled."""
    origin_id: str | None = None
    """The id of the message that was sent first, if this one was a replay."""


def sequel_id(kind: str, source: str, message: Any) -> SequelId:
    """Return the id of a message's sequel, a dead letter or a reply; the same after a crash.

    It does not depend on the delivery count: that rises if a worker dies between sending the
    letter and acknowledging the message, and the next worker would send a second letter. It does
    depend on the time of sending: if a sender uses an id again, that is another message with a
    letter and a reply of its own.
    """
    sent = getattr(message, "enqueued_at", None)
    parts = source, message.id, "" if sent is None else sent.isoformat()
    return SequelId(derived_id(kind, *parts))


def letter_for(
    message: Any,
    error: BaseException,
    *,
    source: str,
    dlq: object,
    readable: bool,
    with_stack: bool = True,
) -> DeadLetter[Any]:
    """Return the dead letter for a message."""
    attributes: Mapping[str, str] = getattr(message, "attributes", None) or {}
    envelope = _envelope(message)
    reply: ReplyRow | None = getattr(message, "_reply_row", None)
    now = datetime.now(UTC)
    return DeadLetter(
        message_id=message.id,
        body=_body_to_store(message, envelope, dlq) if readable else None,
        source_mailbox=source,
        delivery_count=getattr(message, "delivery_count", 1),
        last_error=described(error),
        last_error_type=error_type(error),
        dead_lettered_at=now,
        first_received_at=getattr(message, "first_received_at", None) or now,
        request_id=request_id_of(message),
        reply_to=_reply_name(message, envelope),
        trace_id=_trace_id(attributes),
        worker=process_name(),
        traceback=stack_of(error) if with_stack else None,
        raw_payload=None if readable else _raw(message),
        body_type=None if envelope is None else envelope.type,
        attributes=dict(attributes) or None,
        reply_id=None if envelope is None else envelope.reply_id,
        reply_timeout=None if reply is None else reply.ttl,
        reply_keep=None if reply is None else reply.keep,
        origin_id=None if envelope is None else envelope.origin,
    )


def letter_fields(letter: DeadLetter[Any]) -> dict[str, object]:
    """Return the log fields that identify a letter."""
    request_id = None if letter.request_id is None else str(letter.request_id)
    return {"message_id": letter.message_id, "request_id": request_id}


def log_processing(letter: DeadLetter[Any], action: str) -> None:
    """Log what is about to be done with a letter."""
    fields = {**letter_fields(letter), "age_seconds": round(age_of(letter), 3), "action": action}
    logger.event(logging.INFO, "Processing dead letter", fields)


def age_of(letter: DeadLetter[Any]) -> float:
    """Return how many seconds ago a message was given up."""
    since = letter.dead_lettered_at
    if since.tzinfo is None:  # another program may have written the letter
        since = since.replace(tzinfo=UTC)
    return (datetime.now(UTC) - since).total_seconds()


def request_id_of(message: Any) -> UUID | None:
    """Return the id of the request in a message, even if the rest cannot be decoded."""
    envelope = _envelope(message)
    if envelope is not None and isinstance(envelope.body, msgspec.Raw):
        # Read as plain JSON, because decoding it as its type may be what kills the worker.
        found = _loose_request_id(envelope.body)
    else:
        found = getattr(_body(message), "request_id", None)
    try:
        return found if found is None or isinstance(found, UUID) else UUID(str(found))
    except ValueError:
        return None


def _loose_request_id(raw: msgspec.Raw) -> object:
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return None
    return body.get("request_id") if isinstance(body, dict) else None


def _envelope(message: Any) -> Envelope | None:
    envelope = getattr(message, "_envelope", None)
    known = isinstance(envelope, Envelope) and not isinstance(envelope, Unreadable)
    return envelope if known else None


def _body(message: Any) -> Any:
    try:
        return message.body
    except SerializationError:
        return None


def _body_to_store(message: Any, envelope: Envelope | None, dlq: object) -> Any:
    """Return the sender's JSON unchanged if the dead letters are JSON too, else the object."""
    if envelope is not None and isinstance(envelope.body, msgspec.Raw):
        sealer = getattr(dlq, "_sealer", None)
        if sealer is not None and not isinstance(sealer, ObjectSealer):
            return envelope.body
    return message.body


def _reply_name(message: Any, envelope: Envelope | None) -> str | None:
    # From the envelope, not the property: the name is evidence even if it cannot be resolved.
    address = envelope.reply_to if envelope is not None else getattr(message, "reply_to", None)
    return address if address is None or isinstance(address, str) else str(address.name)


def _trace_id(attributes: Mapping[str, str]) -> str | None:
    # The attributes contain it too, so a huge one would double the size of the letter.
    found = attributes.get("trace_id")
    if found is not None:
        return found if len(found) <= MAX_TRACE_ID else None
    parent = TRACEPARENT.match(attributes.get("traceparent", ""))
    return parent and parent[1]


def _raw(message: Any) -> bytes | None:
    payload = getattr(message, "payload", None)
    if isinstance(payload, Envelope) and isinstance(payload.body, msgspec.Raw):
        payload = msgspec.json.encode(Envelope(payload.body, payload.type))
    return payload if isinstance(payload, bytes) else None
