"""Whatever stands in a URL, an error of ours says what is wrong with it."""

from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from weakincentives import connect
from weakincentives.runtime.mailbox import (
    InvalidParameterError,
    MailboxConnectionError,
    MailboxError,
    PayloadTooLargeError,
)

PLACES = ["redis://", "rediss://", "redis+sentinel://", "sqs://", "memory://"]
PIECES = st.sampled_from(
    [
        *("host", "h1:1,h2:2", "[::1]", "[::1", "]", "@", ":", "/", "//", "?", "&", "=", "#", "%"),
        *("%zz", "%ff", "%00", "65536", "-1", "\u00b2", "6379", "0", "user", "\x00", " "),
        *("\n", "db", "min_replicas", "max_bytes", "socket_timeout", "retry", "create", "endpoint"),
        *("ssl_cert_reqs", "protocol", "master", "\ud800", "\uff0f", "eu-west-1", "x" * 300),
    ]
)


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")


@given(place=st.sampled_from(PLACES), rest=st.lists(PIECES, max_size=8).map("".join))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_url_is_opened_or_refused_in_words_of_ours(place: str, rest: str) -> None:
    with suppress(MailboxError):
        connect(place + rest).close()


@given(rest=st.lists(PIECES, max_size=6).map("".join))
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_url_of_a_file_too(tmp_path: Path, rest: str) -> None:
    for url in (f"sqlite://{rest}", f"sqlite:///{quote(str(tmp_path))}/box.db{rest}"):
        with suppress(MailboxError):
            connect(url).close()


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("sqlite:///a%zz.db", "%25"),
        ("sqlite:///a%ff.db", "utf-8"),
        ("sqlite:///a.db?durabilty=full", "durability"),
        ("sqlite:///a.db?durability=", "durability"),
        ("sqlite:///a.db?durability=full&durability=normal", "once"),
        ("sqlite:///a.db?max_bytes=many", "max_bytes"),
        ("sqlite:///a.db?max_bytes=1", "1024"),
        ("sqlite:///a\nb.db", "control"),
        ("redis://[::1", "IPv6"),
        ("redis://host:65536", "65535"),
        ("redis://host:port", "port"),
        ("redis://host/first", "number"),
        ("redis://host?retry=3", "retry"),
        ("redis://host?socket_timeout=soon", "socket_timeout"),
        ("redis://host?min_replicas=\u00b2", "min_replicas"),
        ("redis+sentinel:///master", "host:port"),
        ("redis+sentinel://h1:99999/master", "65535"),
        ("redis+sentinel://h1", "master"),
        ("redis+cluster://host/0", "databases"),
        ("sqs://eu west", "sqs://region"),
        ("sqs://eu-west-1?create=maybe", "create"),
        ("sqs://eu-west-1?replys=table", "replies"),
        ("sqs://eu-west-1?endpoint=nowhere", "endpoint"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, url: str, says: str) -> None:
    with pytest.raises(InvalidParameterError, match=says):
        connect(url)
    assert list(tmp_path.iterdir()) == []


def test_a_url_may_say_how_large_messages_are(tmp_path: Path) -> None:
    with connect(f"sqlite:///{tmp_path}/box.db?max_bytes=2048") as backend:
        assert backend.mailbox("jobs").limits.max_bytes == 2048
        assert backend.create("jobs").limits.max_bytes == 2048
        assert backend.mailbox("jobs", max_bytes=4096).limits.max_bytes == 4096
        with pytest.raises(PayloadTooLargeError, match="takes 2048"):
            backend.mailbox("jobs").send("x" * 2048)
    with connect("redis://host?max_bytes=2048") as backend:
        assert backend.mailbox("jobs").limits.max_bytes == 2048


def test_a_server_that_is_away_is_another_matter() -> None:
    with pytest.raises(MailboxConnectionError):
        connect("redis+cluster://127.0.0.1:1")
