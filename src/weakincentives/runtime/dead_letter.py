"""What is kept of a message that was given up."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic
from uuid import UUID

import msgspec
from typing_extensions import TypeVar

from weakincentives.dataclasses import FrozenDataclass
from weakincentives.ids import derived_id
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.runtime.mailbox.envelope import Envelope, ObjectSealer, Unreadable

from .evidence import described, error_type, stack_of, worker_name

__all__ = ["DeadLetter", "letter_for", "request_id_of", "sequel_id"]

T = TypeVar("T", default=Any)


@FrozenDataclass()
class DeadLetter(Generic[T]):
    """A message that was given up, and why."""

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
    """How many times the message had been received."""
    last_error: str
    """What the last error said, redacted and bounded."""
    last_error_type: str
    """The full name of the last error's type."""
    dead_lettered_at: datetime
    first_received_at: datetime
    """When the message was received for the first time."""
    request_id: UUID | None = None
    """The request's id, if the body has one."""
    reply_to: str | None = None
    """The mailbox that the sender wanted replies in."""
    trace_id: str | None = None
    """The attribute ``trace_id`` of the message."""
    worker: str | None = None
    """Who gave up: machine and process id."""
    traceback: str | None = None
    """Where the last error came from, redacted and bounded."""
    raw_payload: bytes | None = None
    """The whole payload, if the body could not be read."""
    body_type: str | None = None
    """The class name that travelled with the body."""
    attributes: dict[str, str] | None = None
    """What the sender had attached."""


def sequel_id(kind: str, source: str, message: Any) -> str:
    """Return the id of what a message leads to, a letter or an answer; the same after a crash.

    Not of the delivery count: a worker that dies between the letter and the acknowledgement makes
    it rise, and the next one would write a second letter. Of the time of sending: an id that its
    sender uses again is another message, with a letter and an answer of its own.
    """
    sent = getattr(message, "enqueued_at", None)
    return derived_id(kind, source, message.id, "" if sent is None else sent.isoformat())


def letter_for(
    message: Any,
    error: BaseException,
    *,
    source: str,
    dlq: object,
    readable: bool,
    with_stack: bool = True,
) -> DeadLetter[Any]:
    """Put together the dead letter of a message."""
    attributes: Mapping[str, str] = getattr(message, "attributes", None) or {}
    envelope = _envelope(message)
    now = datetime.now(UTC)
    return DeadLetter(
        message_id=message.id,
        body=_kept_body(message, envelope, dlq) if readable else None,
        source_mailbox=source,
        delivery_count=getattr(message, "delivery_count", 1),
        last_error=described(error),
        last_error_type=error_type(error),
        dead_lettered_at=now,
        first_received_at=getattr(message, "first_received_at", None) or now,
        request_id=request_id_of(message),
        reply_to=_reply_name(message, envelope),
        trace_id=attributes.get("trace_id"),
        worker=worker_name(),
        traceback=stack_of(error) if with_stack else None,
        raw_payload=None if readable else _raw(message),
        body_type=None if envelope is None else envelope.type,
        attributes=dict(attributes) or None,
    )


def request_id_of(message: Any) -> UUID | None:
    """Return the id of the request in a message, also if the rest of it cannot be read."""
    envelope = _envelope(message)
    if envelope is not None and isinstance(envelope.body, msgspec.Raw):
        # As plain JSON: to read it as its type may be what kills the worker.
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
    envelope = getattr(message, "envelope", None)
    known = isinstance(envelope, Envelope) and not isinstance(envelope, Unreadable)
    return envelope if known else None


def _body(message: Any) -> Any:
    try:
        return message.body
    except SerializationError:
        return None


def _kept_body(message: Any, envelope: Envelope | None, dlq: object) -> Any:
    """Return the body as the sender wrote it where the dead letters are JSON too."""
    if envelope is not None and isinstance(envelope.body, msgspec.Raw):
        sealer = getattr(dlq, "sealer", None)
        if sealer is not None and not isinstance(sealer, ObjectSealer):
            return envelope.body
    return message.body


def _reply_name(message: Any, envelope: Envelope | None) -> str | None:
    # From the envelope, not the property: the name is evidence also if nobody can resolve it.
    address = envelope.reply_to if envelope is not None else getattr(message, "reply_to", None)
    return address if address is None or isinstance(address, str) else str(address.name)


def _raw(message: Any) -> bytes | None:
    payload = getattr(message, "payload", None)
    if isinstance(payload, Envelope) and isinstance(payload.body, msgspec.Raw):
        payload = msgspec.json.encode(Envelope(payload.body, payload.type))
    return payload if isinstance(payload, bytes) else None
