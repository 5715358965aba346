"""What somebody may write where a message's payload is kept: each should cost itself only."""

import json

DEEP = 100_000


def envelope(**keys: object) -> bytes:
    return json.dumps({"b": "hostile", **keys}).encode()


PAYLOADS: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"hello",
    "half an envelope": b'{"b":{"item":',
    "two envelopes": b'{"b":1}{"b":2}',
    "not UTF-8": b'{"b":"\xff\xfe"}',
    "NUL bytes": b'\x00{"b":1}\x00',
    "a NUL in the text": b'{"b":"a\\u0000b"}',
    "half a character": b'{"b":"\\ud800"}',
    "a byte order mark": b'\xef\xbb\xbf{"b":1}',
    "another encoding": '{"b":1}'.encode("utf-16"),
    "no object": b"[1,2,3]",
    "null": b"null",
    "a number": b"1e309",
    "not a number": b'{"b":NaN}',
    "a number of many digits": b'{"b":' + b"9" * 5000 + b"}",
    "deep lists": b'{"b":' + b"[" * DEEP + b"]" * DEEP + b"}",
    "deep objects": b'{"b":' + b'{"x":' * DEEP + b"1" + b"}" * DEEP + b"}",
    "deep and unfinished": b"[" * DEEP,
    "no body": b"{}",
    "a key twice": b'{"b":1,"b":2,"v":1,"v":2}',
    "another type's name": envelope(t="os.system"),
    "a type that is no text": envelope(t=[1]),
    "a long type": envelope(t="x" * 100_000),
    "a newer version": envelope(v=99),
    "a version below zero": envelope(v=-1),
    "a version beyond all numbers": b'{"b":1,"v":' + b"9" * 40 + b"}",
    "a version that is no number": envelope(v="one"),
    "reply_to is nobody": envelope(r="nobody-at-all"),
    "reply_to is empty": envelope(r=""),
    "reply_to is a path": envelope(r="../../etc/passwd"),
    "reply_to is a key": envelope(r="x}:data"),
    "reply_to has control characters": envelope(r="a\x1b[2J\r\nb"),
    "reply_to is a URL": envelope(r="sqlite:////etc/passwd"),
    "reply_to is long": envelope(r="x" * 100_000),
    "reply_to is no text": envelope(r={"name": "x"}),
    "reply_to is this queue": envelope(r="orders"),
    "a reply nobody waits for": envelope(c="nobody-waits"),
    "an empty reply id": envelope(c=""),
    "a reply id with control characters": envelope(c="a\x00\r\n*1\r\nb"),
    "a reply id with wildcards": envelope(c="*}:[x"),
    "a long reply id": envelope(c="x" * 100_000),
    "a reply id that is no text": envelope(c=7),
    "attributes that are no object": envelope(a=[1]),
    "attributes that are no text": envelope(a={"x": 1}),
    "attributes with control characters": envelope(a={"\x1b[31m": "\r\n\x00", "trace_id": "\n"}),
    "many attributes": envelope(a={str(n): "x" for n in range(10_000)}),
    "unknown keys": envelope(z=1, __class__="x", body="y"),
    "a body of markup": envelope(b="[/red]</script>{0}%s$(rm)"),
    "a body with escapes": envelope(b="\x1b]0;title\x07\x1b[2J"),
}
