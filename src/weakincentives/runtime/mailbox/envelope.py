"""The envelope around a body, and the sealers that turn it into a payload and back."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, get_origin

import msgspec

from weakincentives.serde import Carrier, Codec, SerdeError, class_name

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
    origin: str | None = msgspec.field(name="o", default=None)
    """The id of the message that was sent first, if this one is a replay of its dead letter."""
    reply_timeout: float | None = msgspec.field(name="w", default=None)
    """For how many seconds the caller waits for the reply, if it is not kept for longer."""


class WireEnvelope(Envelope, omit_defaults=True):
    """An envelope decoded from bytes: its body is not decoded yet, its reply address is a name."""

    body: msgspec.Raw = msgspec.Raw(b"")
    reply_to: str | None = msgspec.field(name="r", default=None)


class Verbatim(NamedTuple):
    """A body that is already encoded, to be sent unchanged."""

    body: msgspec.Raw
    type: str | None


class Unreadable(Envelope, gc=True):
    """Stands for a payload that is not an envelope; its body is the error."""


class Sealer(Protocol):
    """Turns an envelope into what a store keeps, and back."""

    def seal(self, envelope: Envelope) -> Any:
        """Return the payload for a store; raise before anything is stored."""
        ...

    def open(self, payload: Any) -> Envelope:
        """Decode the headers of a payload, but not the body."""
        ...

    def body(self, envelope: Envelope) -> Any:
        """Decode the body of an opened envelope."""
        ...


ORIGIN_BYTES = 160
"""The most that the id of the first message adds to the envelope of a replay."""


class JsonSealer:
    """Payloads are bytes of JSON.

    A `Carrier`, such as a dead letter, may be larger than ``max_bytes``: the message that it
    carries was checked when it was sent.
    """

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._codec = codec
        self._max_bytes = max_bytes
        # Twice the limit of a send, because these may be carriers without a declared type.
        self._most_read = None if _is_carrier(codec.declared) else 2 * max_bytes
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
        # A replay says where it comes from, and its body was checked when it was sent first.
        most = self._max_bytes + (0 if envelope.origin is None else ORIGIN_BYTES)
        if len(payload) > most and not isinstance(body, Carrier):
            raise PayloadTooLargeError(
                f"nothing was sent: the message has {len(payload)} bytes, "
                f"this mailbox takes {self._max_bytes}; send a reference to it instead"
            )
        return payload

    def open(self, payload: bytes) -> Envelope:
        """Decode the headers; raise if the payload is not an envelope."""
        if self._most_read is not None and len(payload) > self._most_read:
            raise PayloadTooLargeError(
                f"the message has {len(payload)} bytes, this mailbox reads {self._most_read}"
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
        """Decode the body as the declared type."""
        try:
            return self._codec.decode(envelope.body, envelope.type)
        except SerdeError as error:
            raise SerializationError(str(error)) from error


def _is_carrier(declared: Any) -> bool:
    declared = get_origin(declared) or declared
    return isinstance(declared, type) and issubclass(declared, Carrier)


class ObjectSealer:
    """Payloads are the objects themselves, for stores that never leave the process."""

    def seal(self, envelope: Envelope) -> Envelope:
        """Keep the envelope as it is."""
        return envelope

    def open(self, payload: Envelope) -> Envelope:
        """Return the envelope as it is."""
        return payload

    def body(self, envelope: Envelope) -> Any:
        """Return the body as it is."""
        return envelope.body


class CheckedSealer:
    """Payloads stay objects, but bodies are turned into JSON and back, as on a server."""

    def __init__(self, codec: Codec, max_bytes: int) -> None:
        self._json = JsonSealer(codec, max_bytes)

    def seal(self, envelope: Envelope) -> Envelope:
        """Turn the body into JSON; keep the reply address an object."""
        reply_to, envelope.reply_to = envelope.reply_to, None
        try:
            self._json.seal(envelope)
        finally:
            envelope.reply_to = reply_to
        return envelope

    def open(self, payload: Envelope) -> Envelope:
        """Return the envelope as it is."""
        return payload

    def body(self, envelope: Envelope) -> Any:
        """Decode the body as the declared type."""
        return self._json.body(envelope)
