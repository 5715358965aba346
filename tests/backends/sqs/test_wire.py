"""How a payload becomes body and attributes, and what others wrote becomes a payload."""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from weakincentives.contrib.mailbox.sqs.codec import (
    MESSAGE_ID,
    METADATA,
    NOT_XML,
    SendEntry,
    SQSSealer,
    to_entry,
    to_payload,
)
from weakincentives.runtime.mailbox import InvalidParameterError, SerializationError
from weakincentives.runtime.mailbox.envelope import Envelope
from weakincentives.serde import Codec


@dataclass(frozen=True)
class Order:
    sku: str


def sealed(body: Any, attributes: dict[str, str] | None = None, reply_id: str | None = None) -> Any:
    return SQSSealer(Codec(Any), 10**6).seal(Envelope(body, None, 1, None, reply_id, attributes))


def received(entry: SendEntry) -> dict[str, Any]:
    """Return an entry as SQS would hand it out."""
    return {
        "MessageId": "sqs-id",
        "Body": entry.body,
        "MessageAttributes": {
            name: {"DataType": "String", "StringValue": value}
            for name, value in entry.attributes.items()
        },
    }


def foreign(body: str, attributes: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"MessageId": "sqs-id", "Body": body, "MessageAttributes": attributes or {}}


def opened(message: dict[str, Any], declared: Any = Any) -> Any:
    sealer = SQSSealer(Codec(declared), 10**6)
    return sealer.body(sealer.open(to_payload(message)[1]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(json_values, st.dictionaries(st.text(), st.text(), max_size=14))
def test_what_goes_in_comes_out(body: Any, attributes: dict[str, str]) -> None:
    payload = sealed(body, attributes or None, "reply-1")
    entry = to_entry("id-1", payload)
    assert json.loads(entry.body) == body
    assert len(entry.attributes) <= 10
    assert not NOT_XML.search(entry.body)
    assert all(value and not NOT_XML.search(value) for value in entry.attributes.values())
    id, back = to_payload(received(entry))
    envelope = SQSSealer(Codec(Any), 10**6).open(back)
    assert (id, envelope.reply_id) == ("id-1", "reply-1")
    assert dict(envelope.attributes or {}) == attributes
    assert opened(received(entry)) == body


def test_a_replay_says_where_it_comes_from() -> None:
    payload = SQSSealer(Codec(Any), 10**6).seal(Envelope(1, reply_id="reply-1", origin="first"))
    message = received(to_entry("id-1", payload))
    message["Attributes"] = {"MessageGroupId": "group"}
    _, back = to_payload(message)
    envelope = SQSSealer(Codec(Any), 10**6).open(back)
    assert (envelope.origin, envelope.reply_id) == ("first", "reply-1")
    assert to_entry("id-2", back).group == "group"


@given(st.binary() | st.text().map(str.encode))
def test_bytes_that_are_no_envelope_come_back_as_they_were(payload: bytes) -> None:
    entry = to_entry("id-1", payload)
    assert entry.body
    assert not NOT_XML.search(entry.body)
    assert to_payload(received(entry)) == ("id-1", payload)


def test_the_body_is_the_users_json_and_nothing_else() -> None:
    entry = to_entry("id-1", SQSSealer(Codec(Order), 10**6).seal(Envelope(Order("A1"))))
    assert entry.body == '{"sku":"A1"}'
    assert json.loads(entry.attributes[METADATA]) == {"i": "id-1", "t": "Order"}


def test_attributes_that_sqs_cannot_carry_ride_in_the_metadata() -> None:
    odd = {
        "käse": "x",
        "empty": "",
        "AWS.x": "x",
        ".a": "x",
        "a..b": "x",
        "bell": "\a",
        "wink": "x",
    }
    many = {f"n{n}": str(n) for n in range(12)}
    entry = to_entry("id-1", sealed(1, {**odd, **many}))
    assert set(entry.attributes) == {METADATA, *list(many)[:9]}
    assert json.loads(entry.attributes[METADATA])["a"].keys() == {*odd, "n9", "n10", "n11"}


def test_size_is_counted_as_sqs_counts() -> None:
    entry = SendEntry("ä", {"name": "värde"}, None)
    assert entry.size == 2 + len("name") + len("String") + 6


def test_a_body_cannot_write_headers() -> None:
    hostile = foreign('1,"c":"reply-of-another","r":"elsewhere"')
    id, payload = to_payload(hostile)
    with pytest.raises(SerializationError):
        SQSSealer(Codec(Any), 10**6).open(payload)
    assert (id, payload) == ("sqs-id", hostile["Body"].encode())


def test_an_s3_event_is_readable() -> None:
    event = {"Records": [{"eventName": "ObjectCreated:Put", "s3": {"object": {"key": "a/b"}}}]}
    assert opened(foreign(json.dumps(event, indent=2))) == event


def test_foreign_attributes_come_along() -> None:
    message = foreign(
        '{"sku": "A1"}',
        {
            "kind": {"DataType": "String", "StringValue": "order"},
            "size": {"DataType": "Number", "StringValue": "7"},
            "blob": {"DataType": "Binary", "BinaryValue": b"\x00\x01"},
            METADATA: {"DataType": "String", "StringValue": "not ours"},
        },
    )
    id, payload = to_payload(message)
    envelope = SQSSealer(Codec(Order), 10**6).open(payload)
    assert id == "sqs-id"
    assert opened(message, Order) == Order("A1")
    assert envelope.attributes == {
        "kind": "order",
        "size": "7",
        "blob": "AAE=",
        METADATA: "not ours",
    }


@pytest.mark.parametrize("body", ["hello there", "{cut off", "[" * 5000])
def test_text_that_is_no_json_fails_that_message_unless_text_is_declared(body: str) -> None:
    with pytest.raises(SerializationError):
        opened(foreign(body))
    with pytest.raises(SerializationError):
        opened(foreign(body), Order)
    assert opened(foreign(body), str) == body


@pytest.mark.parametrize(
    ("body", "text"), [('"quoted"', "quoted"), ("123", "123"), ('{"a": 1}', '{"a": 1}')]
)
def test_where_text_is_declared_json_of_others_is_text(body: str, text: str) -> None:
    assert opened(foreign(body), str) == text


def test_where_text_is_declared_our_own_messages_must_be_text() -> None:
    with pytest.raises(SerializationError):
        opened(received(to_entry("id-1", sealed(123))), str)


def test_a_newer_envelope_is_refused_also_where_text_is_declared() -> None:
    message = foreign("1", {METADATA: {"DataType": "String", "StringValue": '{"v":99}'}})
    with pytest.raises(SerializationError, match="newer"):
        opened(message, str)


@pytest.mark.parametrize("id", ["", "a b", "x" * 129, "a\nb"])
def test_a_hostile_id_is_not_taken_over(id: str) -> None:
    metadata = json.dumps({"i": id})
    message = foreign("1", {METADATA: {"DataType": "String", "StringValue": metadata}})
    assert to_payload(message)[0] == "sqs-id"


def test_the_largest_message_that_sqs_takes_can_be_read() -> None:
    body = json.dumps("x" * (1024 * 1024 - 2))
    assert len(opened(foreign(body))) == 1024 * 1024 - 2


def test_a_function_names_the_group_and_it_survives_a_replay() -> None:
    sealer = SQSSealer(Codec(Order), 10**6, lambda order: f"sku-{order.sku}")
    entry = to_entry("id-1", sealer.seal(Envelope(Order("A1"))))
    assert (entry.body, entry.group) == ('{"sku":"A1"}', "sku-A1")
    message = received(entry) | {"Attributes": {"MessageGroupId": "sku-A1"}}
    assert to_entry("id-2", to_payload(message)[1]).group == "sku-A1"


@pytest.mark.parametrize("group", ["", "a b", "ä", "x" * 129, 7])
def test_bad_groups(group: Any) -> None:
    sealer = SQSSealer(Codec(Any), 10**6, lambda body: group)
    with pytest.raises(InvalidParameterError, match="message_group_id"):
        sealer.seal(Envelope(1))


odd_text = st.text(st.characters(exclude_categories=())) | st.sampled_from(["base64", "text", ""])
odd_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | odd_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd_text, inner, max_size=3),
    max_leaves=5,
)


@given(
    odd_text | st.just("base64:!!!!"),
    st.dictionaries(st.sampled_from("itvrcax"), odd_json).map(json.dumps) | odd_text,
    odd_text,
)
@example("not base64", '{"x":"base64"}', "")
@example("1", '{"v":1180591620717411303424}', "")
@example("\ud800", "{}", "")
@example("1", '{"a":{"k":"\\ud800"}}', "")
@example("1", "{}", "\ud800")
def test_nothing_that_a_sender_writes_makes_reading_raise(
    body: str, metadata: str, attribute: str
) -> None:
    message = foreign(
        body,
        {
            METADATA: {"DataType": "String", "StringValue": metadata},
            "other": {"DataType": "String", "StringValue": attribute},
        },
    )
    id, payload = to_payload(message)
    assert MESSAGE_ID.fullmatch(id)
    for declared in (Any, str, Order):
        sealer = SQSSealer(Codec(declared), 10**6)
        try:
            sealer.body(sealer.open(payload))
        except SerializationError:
            pass
