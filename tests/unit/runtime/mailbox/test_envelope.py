import time
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weakincentives.runtime.mailbox import InMemoryMailbox, PayloadTooLargeError, SerializationError
from weakincentives.runtime.mailbox.envelope import (
    VERSION,
    CheckedSealer,
    Envelope,
    JsonSealer,
    ObjectSealer,
    Sealer,
)
from weakincentives.serde import Codec


@dataclass(frozen=True)
class Order:
    item: str


def json_sealer(declared: Any = Any, max_bytes: int = 1000) -> JsonSealer:
    return JsonSealer(Codec(declared), max_bytes)


def test_the_wire_format_is_small() -> None:
    """Other languages read this: a change here is a change of the version."""
    assert json_sealer().seal(Envelope("tea")) == b'{"b":"tea"}'
    answers = InMemoryMailbox[str, None]("answers")
    full = Envelope(Order("tea"), None, VERSION, answers, "reply-1", {"trace": "7"})
    assert msgspec.json.decode(json_sealer(Order).seal(full)) == {
        "b": {"item": "tea"},
        "t": "Order",
        "r": "answers",
        "c": "reply-1",
        "a": {"trace": "7"},
    }


@pytest.mark.parametrize(
    "make", [json_sealer, lambda declared: CheckedSealer(Codec(declared), 1000)]
)
def test_bodies_come_back_as_the_declared_type(make: Any) -> None:
    sealer: Sealer = make(Order)
    envelope = sealer.open(sealer.seal(Envelope(Order("tea"), attributes={"a": "b"}, reply_id="c")))
    assert sealer.body(envelope) == Order("tea")
    assert (envelope.attributes, envelope.reply_id) == ({"a": "b"}, "c")


def test_the_body_stays_unread_until_it_is_asked_for() -> None:
    sealer = json_sealer(Order)
    envelope = sealer.open(b'{"b":{"item":7},"r":"answers"}')
    assert envelope.reply_to == "answers"
    with pytest.raises(SerializationError, match=r"cannot decode Order.*\$\.item"):
        sealer.body(envelope)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"tea",
        b"[1]",
        b"\xff\xfe",
        b'{"b":',
        b'{"b":1,"t":7}',
        b'{"b":1,"a":{"x":1}}',
        b'{"b":1,"r":["q"]}',
        b'{"b":1,"v":"one"}',
        b'{"b":' + b"[" * 400,
    ],
)
def test_what_is_no_envelope_is_refused_at_once(payload: bytes) -> None:
    with pytest.raises(SerializationError, match="not an envelope"):
        json_sealer().open(payload)


@pytest.mark.parametrize("payload", [b"{}", b'{"t":"Order"}', b'{"B":1}'])
def test_an_envelope_without_a_body_has_no_readable_one(payload: bytes) -> None:
    sealer = json_sealer()
    with pytest.raises(SerializationError):
        sealer.body(sealer.open(payload))


def test_keys_of_later_writers_are_ignored_within_a_version() -> None:
    sealer = json_sealer()
    assert sealer.body(sealer.open(b'{"b":1,"z":{"new":true}}')) == 1


def test_a_newer_version_is_refused_with_advice() -> None:
    with pytest.raises(
        SerializationError, match=rf"envelope 2, this one reads up to {VERSION}.*upgrade"
    ):
        json_sealer().open(b'{"b":1,"v":2}')


def test_size_is_checked_before_sending_and_before_parsing() -> None:
    sealer = json_sealer(max_bytes=20)
    assert len(sealer.seal(Envelope("x" * 12))) == 20
    with pytest.raises(PayloadTooLargeError, match="21 bytes, this mailbox takes 20"):
        sealer.seal(Envelope("x" * 13))
    with pytest.raises(PayloadTooLargeError, match="41 bytes, this mailbox reads 40"):
        sealer.open(b"[" * 41)


def test_a_body_that_is_no_json_is_refused_before_anything_is_sent() -> None:
    for sealer in (json_sealer(), CheckedSealer(Codec(), 1000)):
        with pytest.raises(SerializationError, match="nothing was sent"):
            sealer.seal(Envelope(object()))
    with pytest.raises(SerializationError, match="nothing was sent"):
        json_sealer().seal(Envelope(1, attributes={"a": "\ud800"}))


def test_a_checked_sealer_keeps_the_live_reply_address() -> None:
    answers = InMemoryMailbox[str, None]("answers")
    sealer = CheckedSealer(Codec(), 1000)
    assert sealer.open(sealer.seal(Envelope(1, reply_to=answers))).reply_to is answers
    broken = Envelope(object(), reply_to=answers)
    with pytest.raises(SerializationError):
        sealer.seal(broken)
    assert broken.reply_to is answers


def test_an_object_sealer_keeps_everything_as_it_is() -> None:
    sealer, body = ObjectSealer(), object()
    assert sealer.body(sealer.open(sealer.seal(Envelope(body)))) is body


@given(st.binary(max_size=300))
def test_any_bytes_are_opened_or_refused(payload: bytes) -> None:
    sealer = json_sealer(Order)
    try:
        sealer.body(sealer.open(payload))
    except SerializationError:
        pass


def test_a_hostile_payload_is_refused_quickly() -> None:
    sealer = json_sealer(max_bytes=1 << 20)
    started = time.process_time()
    for payload in (b'{"b":' + b"[" * 900_000, b'{"b":"' + b'\\"' * 400_000, b'"' * 900_000):
        with pytest.raises(SerializationError):
            sealer.body(sealer.open(payload))
    assert time.process_time() - started < 3
