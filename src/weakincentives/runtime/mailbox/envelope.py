"""What travels around a body: how a message becomes a payload and is read again."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import msgspec

from weakincentives.serde import Codec, SerdeError, class_name

from .errors import PayloadTooLargeError, SerializationError

__all__ = [
    "CheckedSealer",
    "Envelope",
    "JsonSealer",
    "ObjectSealer",
    "Sealer",
    "Unreadable",
    "Verbatim",
]

VERSION = 1


class Envelope(msgspec.Struct, omit_defaults=True, gc=False, rename={"body": "b", "type": "t"}):
    """A body and its headers. On the wire: JSON with these short keys, absent where empty."""

    body: Any
    type: str | None = None
    version: int = msgspec.field(name="v", default=VERSION)
    reply_to: Any = msgspec.field(name="r", default=None)
    reply_id: str | None = msgspec.field(name="c", default=None)
    attributes: Mapping[str, str] | None = msgspec.field(name="a", default=None)


class WireEnvelope(Envelope, omit_defaults=True):
    """An envelope as it is read from bytes: the body still unread, the reply address a name."""

    body: msgspec.Raw = msgspec.Raw(b"")
    reply_to: str | None = msgspec.field(name="r", default=None)


class Verbatim(NamedTuple):
    """A body that was encoded before, to be sent again as it is."""

    body: msgspec.Raw
    type: str | None


class Unreadable(Envelope, gc=True):
    """What stands for an envelope where the payload is none; its body is the error."""


class Sealer(Protocol):
    """Turns an envelope into what a store keeps, and back."""

    def seal(self, envelope: Envelope) -> Any:
        """Return the payload for a store; raise before anything is stored."""
        ...

    def open(self, payload: Any) -> Envelope:
        """Read the headers of a payload; the body stays unread."""
        ...

    def body(self, envelope: Envelope) -> Any:
        """Read the body of an opened envelope."""
        ...


class JsonSealer:
    """Payloads are bytes of JSON."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        self._decoder = msgspec.json.Decoder(WireEnvelope)
        self._encoder = msgspec.json.Encoder()

    def seal(self, envelope: Envelope) -> bytes:
        """Return the envelope as bytes."""
        body, reply_to = envelope.body, envelope.reply_to
        try:
            if isinstance(body, Verbatim):
                envelope.body, envelope.type = body
            else:
                envelope.body = msgspec.Raw(self._codec.encode(body))
                envelope.type = class_name(body)
            envelope.reply_to = None if reply_to is None else reply_to.name
            payload = self._encoder.encode(envelope)
        except (SerdeError, UnicodeEncodeError) as error:
            raise SerializationError(f"nothing was sent: {error}") from error
        if len(payload) > self._max_bytes:
            raise PayloadTooLargeError(
                f"nothing was sent: the message has {len(payload)} bytes, "
                f"this mailbox takes {self._max_bytes}; send a reference to it instead"
            )
        return payload

    def open(self, payload: bytes) -> Envelope:
        """Read the headers; what is no envelope at all is refused here."""
        if len(payload) > self._max_bytes:
            raise PayloadTooLargeError(
                f"the message has {len(payload)} bytes, this mailbox reads {self._max_bytes}"
            )
        try:
            envelope = self._decoder.decode(payload)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise SerializationError(f"the payload is not an envelope: {error}") from error
        if envelope.version > VERSION:
            raise SerializationError(
                f"the message was written by a newer version (envelope {envelope.version}, "
                f"this one reads up to {VERSION}); upgrade weakincentives here"
            )
        return envelope

    def body(self, envelope: Envelope) -> Any:
        """Read the body as the declared type."""
        try:
            return self._codec.decode(envelope.body, envelope.type)
        except SerdeError as error:
            raise SerializationError(str(error)) from error


class ObjectSealer:
    """Payloads are the objects themselves, for stores that never leave the process."""

    def seal(self, envelope: Envelope) -> Envelope:
        """Keep the envelope as it is."""
        return envelope

    def open(self, payload: Envelope) -> Envelope:
        """Hand the envelope back."""
        return payload

    def body(self, envelope: Envelope) -> Any:
        """Hand the body back."""
        return envelope.body


class CheckedSealer:
    """Payloads stay objects, but bodies make the trip through JSON that a server would demand."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._json = JsonSealer(codec, max_bytes)

    def seal(self, envelope: Envelope) -> Envelope:
        """Write the body as JSON; keep the live reply address."""
        reply_to, envelope.reply_to = envelope.reply_to, None
        try:
            self._json.seal(envelope)
        finally:
            envelope.reply_to = reply_to
        return envelope

    def open(self, payload: Envelope) -> Envelope:
        """Hand the envelope back."""
        return payload

    def body(self, envelope: Envelope) -> Any:
        """Read the body as the declared type."""
        return self._json.body(envelope)
