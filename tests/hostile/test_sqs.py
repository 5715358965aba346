"""Hostile messages on SQS, where a stranger writes the body and the attributes around it."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.hostile.payloads import PAYLOADS
from weakincentives.contrib.mailbox.sqs.codec import METADATA, SQSSealer, to_payload
from weakincentives.runtime.mailbox import SerializationError
from weakincentives.serde import Codec

# As SQS hands it out: text that XML can carry.
text = st.text(st.characters(exclude_categories=("Cs",)))
HEADERS = [
    '{"x":"base64"}',
    '{"x":"text"}',
    '{"x":"gzip"}',
    '{"x":7}',
    '{"i":""}',
    '{"i":"a|b"}',
    '{"i":"a\\u0000b"}',
    '{"i":["x"]}',
    '{"v":99}',
    '{"v":' + "9" * 40 + "}",
    '{"v":18446744073709551616}',
    '{"v":-9223372036854775809}',
    '{"t":{}}',
    '{"r":7}',
    '{"a":{"x":1}}',
    '{"a":{"wink":"again"}}',
    "{",
    "[]",
    "null",
    "",
    "[" * 100_000,
]
BODIES = [
    "base64:",
    "base64:====",
    "base64:a",
    "base64:ä",
    "base64:AAAA",
    "",
    " ",
    "plain text",
    *(payload.decode("utf-8", "replace") for payload in PAYLOADS.values()),
]


def opened(received: dict[str, Any]) -> None:
    """Read what SQS handed out as every receive does."""
    id, payload = to_payload(received)
    assert id
    assert isinstance(payload, bytes)
    for declared in (Any, str, dict):
        sealer = SQSSealer(Codec(declared), 1024 * 1024)
        try:
            sealer.body(sealer.open(payload))
        except SerializationError:
            pass


@pytest.mark.parametrize("header", HEADERS)
def test_any_header_with_any_body(header: str) -> None:
    for body in BODIES:
        opened(
            {
                "MessageId": "sqs-id",
                "Body": body,
                "MessageAttributes": {METADATA: {"DataType": "String", "StringValue": header}},
            }
        )


@given(body=text, header=text | st.dictionaries(st.sampled_from("itvrcax"), text | st.integers()))
def test_random_headers_and_bodies(body: str, header: Any) -> None:
    written = header if isinstance(header, str) else msgspec.json.encode(_bounded(header)).decode()
    opened(
        {
            "MessageId": "sqs-id",
            "Body": body,
            "MessageAttributes": {METADATA: {"DataType": "String", "StringValue": written}},
        }
    )


def _bounded(header: dict[str, Any]) -> dict[str, Any]:
    return {key: v if isinstance(v, str) else v % 2**63 for key, v in header.items()}


@pytest.mark.parametrize(
    "attribute",
    [
        {"DataType": "Binary", "BinaryValue": b"\xff\x00"},
        {"DataType": "Number", "StringValue": "1e400"},
        {"DataType": "String.custom", "StringValue": ""},
        {"DataType": "String"},
    ],
)
def test_attributes_of_other_types(attribute: dict[str, Any]) -> None:
    for name in (METADATA, "other", "__class__"):
        opened({"MessageId": "sqs-id", "Body": "{}", "MessageAttributes": {name: attribute}})
