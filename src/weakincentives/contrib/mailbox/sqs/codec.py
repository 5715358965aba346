"""Converts payloads for SQS: the body is the user's JSON, the headers are an attribute.

One MessageAttribute, `METADATA`, holds our headers as JSON: ``i`` the message's id, ``t`` the
class name, ``v`` the envelope's version, ``r`` the reply address, ``c`` the reply id, ``o`` the
origin of a replay, ``a`` the user's attributes that SQS cannot carry, ``x`` how a body that is no
envelope was written.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from weakincentives.runtime.mailbox.envelope import VERSION, Envelope, JsonSealer, WireEnvelope
from weakincentives.runtime.mailbox.errors import InvalidParameterError, SerializationError
from weakincentives.serde import Codec

__all__ = ["GROUP_ATTRIBUTE", "METADATA", "SQSSealer", "SendEntry", "to_entry", "to_payload"]

METADATA = "wink"
USER_ATTRIBUTES = 9  # SQS accepts ten, and one is ours
LARGEST = 1024 * 1024  # SQS's largest message; reading allows twice that, for the envelope

FOREIGN = 0
"""The envelope version that marks a message of another program."""

NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
ATTRIBUTE_NAME = re.compile(r"(?!(?i:aws\.|amazon\.))(?!\.)(?!.*\.\.)[A-Za-z0-9_.-]{1,256}(?<!\.)")
MESSAGE_ID = re.compile(r"[A-Za-z0-9_.:=-]{1,128}")
GROUP_ATTRIBUTE = "message_group_id"
"""The attribute that names the group of its message."""
GROUP_ID = re.compile(r"[!-~]{1,128}")

BAD_JSON = (msgspec.MsgspecError, ValueError, RecursionError)


class GroupedEnvelope(WireEnvelope, omit_defaults=True):
    """An envelope with the message group that a FIFO queue keeps in order."""

    group: str | None = msgspec.field(name="g", default=None)


class Metadata(msgspec.Struct, omit_defaults=True):
    """The headers in our attribute, `METADATA`."""

    id: str | None = msgspec.field(name="i", default=None)
    type: str | None = msgspec.field(name="t", default=None)
    version: int = msgspec.field(name="v", default=VERSION)
    reply_to: str | None = msgspec.field(name="r", default=None)
    reply_id: str | None = msgspec.field(name="c", default=None)
    attributes: dict[str, str] | None = msgspec.field(name="a", default=None)
    raw: str | None = msgspec.field(name="x", default=None)
    origin: str | None = msgspec.field(name="o", default=None)


class SendEntry(NamedTuple):
    """A message in the form in which it is sent to SQS."""

    body: str
    attributes: Mapping[str, str]
    group: str | None

    @property
    def size(self) -> int:
        """The bytes that SQS counts: body, and names, types and values of attributes."""
        return len(self.body.encode()) + sum(
            len(name) + len("String") + len(value.encode())
            for name, value in self.attributes.items()
        )


def to_entry(id: str, payload: bytes) -> SendEntry:
    """Split an envelope into body and attributes; a payload that is not one becomes the body."""
    envelope = _envelope(payload)
    carried: dict[str, str] = {}
    group = None
    if envelope is None:
        body, raw = _as_text(payload)
        metadata = Metadata(id, raw=raw)
    else:
        # A JSON string may contain these two characters, which SQS refuses because XML does.
        body = bytes(envelope.body).decode()
        body = body.replace("\ufffe", "\\ufffe").replace("\uffff", "\\uffff")
        carried, rest = _parted(envelope.attributes or {})
        group = envelope.group
        metadata = Metadata(
            id,
            envelope.type,
            envelope.version,
            envelope.reply_to,
            envelope.reply_id,
            rest or None,
            origin=envelope.origin,
        )
    written = msgspec.json.encode(metadata).decode()
    carried[METADATA] = NOT_XML.sub(lambda found: f"\\u{ord(found[0]):04x}", written)
    return SendEntry(body, carried, group)


def to_payload(received: Mapping[str, Any]) -> tuple[str, bytes]:
    """Return the id and payload of a received message, even if another program sent it."""
    attributes = {
        name: _text_of(value) for name, value in received.get("MessageAttributes", {}).items()
    }
    metadata = _metadata(attributes.get(METADATA))
    if metadata is None:
        metadata = Metadata(version=FOREIGN)
    else:
        del attributes[METADATA]
    id = metadata.id if MESSAGE_ID.fullmatch(metadata.id or "") else None
    return id or received["MessageId"], _joined(received, metadata, attributes)


class SQSSealer(JsonSealer):
    """A `JsonSealer` that adds the message group, and reads messages of other programs."""

    def __init__(
        self, codec: Codec, max_bytes: int, group: Callable[[Any], str | None] | None = None
    ) -> None:
        super().__init__(codec, max_bytes)
        self._group = group
        # Whatever SQS accepts must be readable, although our envelope makes it a little larger.
        self._reader = JsonSealer(codec, LARGEST)
        self._text = codec.declared is str

    def seal(self, envelope: Envelope) -> bytes:
        """Return the envelope as bytes, with its group where a function names it."""
        body, attributes = envelope.body, envelope.attributes or {}
        payload = super().seal(envelope)
        group = attributes.get(GROUP_ATTRIBUTE)
        if group is None and self._group is not None:
            group = self._group(body)
        if group is None:
            return payload
        return b'{"g":' + msgspec.json.encode(check_group(group)) + b"," + payload[1:]

    def open(self, payload: bytes) -> Envelope:
        """Decode the headers; if the declared type is str, a body that is not JSON is text."""
        text = _utf8(payload) if self._text and _json(payload) is None else None
        if text is not None:
            return Envelope(msgspec.Raw(msgspec.json.encode(text)), version=FOREIGN)
        return self._reader.open(payload)

    def body(self, envelope: Envelope) -> Any:
        """Decode the body; if the declared type is str, JSON of other programs is text too."""
        try:
            return super().body(envelope)
        except SerializationError:
            if self._text and envelope.version == FOREIGN:
                return bytes(envelope.body).decode()
            raise


def field_of(name: str) -> Callable[[Any], str | None]:
    """Return a function that reads the group of a message from a field of its body."""

    def group(body: Any) -> str | None:
        value = body.get(name) if isinstance(body, Mapping) else getattr(body, name, None)
        return None if value is None else str(value)

    return group


def check_group(value: object) -> str:
    """Check the name of a message group."""
    if not isinstance(value, str) or not GROUP_ID.fullmatch(value):
        raise InvalidParameterError(
            f"message_group_id must be 1 to 128 letters, digits and punctuation marks, "
            f"not {value!r:.150}"
        )
    return value


def _envelope(payload: bytes) -> GroupedEnvelope | None:
    """Read an envelope that can be split and joined again without losing anything."""
    try:
        envelope = msgspec.json.decode(payload, type=GroupedEnvelope)
    except BAD_JSON:
        return None
    readable = bytes(envelope.body) and _utf8(bytes(envelope.body)) is not None
    return envelope if readable and envelope.version <= VERSION else None


def _as_text(payload: bytes) -> tuple[str, str]:
    """Encode bytes as a body that SQS accepts; return the body and the encoding."""
    text = _utf8(payload)
    if text and not NOT_XML.search(text):
        return text, "text"
    return f"base64:{b64encode(payload).decode()}", "base64"


def _utf8(payload: bytes) -> str | None:
    try:
        return payload.decode()
    except UnicodeDecodeError:
        return None


def _json(body: bytes) -> msgspec.Raw | None:
    """Return the body as one JSON value; None if it is not.

    It is parsed, not pasted: a body must not be able to close the JSON early and add headers.
    """
    try:
        return msgspec.json.decode(body, type=msgspec.Raw)
    except BAD_JSON:
        return None


def _parted(attributes: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Split the attributes into those that SQS accepts and those that go into our metadata."""
    carried: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in attributes.items():
        fits = (
            len(carried) < USER_ATTRIBUTES
            and name != METADATA
            and ATTRIBUTE_NAME.fullmatch(name)
            and value
            and not NOT_XML.search(value)
        )
        (carried if fits else rest)[name] = value
    return carried, rest


def _text_of(attribute: Mapping[str, Any]) -> str:
    if "StringValue" in attribute:
        # Half of a surrogate pair is text to Python, and to nobody else.
        return str(attribute["StringValue"]).encode(errors="replace").decode()
    return b64encode(attribute.get("BinaryValue", b"")).decode()


def _metadata(written: str | None) -> Metadata | None:
    try:
        return None if written is None else msgspec.json.decode(written, type=Metadata)
    except BAD_JSON:
        return None  # another program's attribute of the same name


def _joined(
    received: Mapping[str, Any], metadata: Metadata, attributes: Mapping[str, str]
) -> bytes:
    body: bytes = received["Body"].encode(errors="surrogatepass")
    if metadata.raw == "base64":
        try:
            return b64decode(body.removeprefix(b"base64:"), validate=True)
        except ValueError:
            return body  # another program wrote that header
    value = _json(body)
    if value is None or metadata.raw == "text":
        return body
    return msgspec.json.encode(
        GroupedEnvelope(
            value,
            metadata.type,
            metadata.version,
            metadata.reply_to,
            metadata.reply_id,
            {**attributes, **(metadata.attributes or {})} or None,
            metadata.origin,
            group=received.get("Attributes", {}).get("MessageGroupId"),
        )
    )
