import sys
from pathlib import Path

import pytest

from weakincentives.contrib.mailbox import urls
from weakincentives.contrib.mailbox.urls import connect, redacted
from weakincentives.runtime.mailbox import InvalidParameterError
from weakincentives.runtime.mailbox.memory.backend import MemoryBackend


@pytest.mark.parametrize("url", ["memory://", "memory:///", "MEMORY://"])
def test_memory_urls(url: str) -> None:
    assert isinstance(connect(url), MemoryBackend)


@pytest.mark.parametrize("url", ["memory://host", "memory:///path", "memory://?size=3"])
def test_memory_urls_with_something_after_them_are_refused(url: str) -> None:
    with pytest.raises(InvalidParameterError, match="takes nothing after it"):
        connect(url)


@pytest.mark.parametrize(
    "url", ["", "orders.db", "://", "memory", "memory:", "postgres://x", None, 7]
)
def test_what_is_no_url_of_ours_is_refused(url: object) -> None:
    with pytest.raises(InvalidParameterError, match="use one of memory://"):
        connect(url)  # type: ignore[arg-type]


def test_a_refusal_tells_no_password() -> None:
    with pytest.raises(InvalidParameterError) as caught:
        connect("amqp://guest:hunter2@broker/queue")
    assert "hunter2" not in str(caught.value)
    assert "broker/queue" in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://localhost:6379/0", "redis://localhost:6379/0"),
        ("redis://:hunter2@localhost", "redis://***@localhost"),
        ("redis://user:hunter2@a:1,b:2/master/0", "redis://***@a:1,b:2/master/0"),
        ("redis://user:hun@ter2@localhost", "redis://***@localhost"),
        ("redis://user:hun/ter2@localhost/0", "redis://***@localhost/0"),
        ("redis://localhost/0?password=hunter2&db=1", "redis://localhost/0?password=***&db=1"),
        ("sqlite:////home/me@work/file.db", "sqlite:////home/me@work/file.db"),
        ("sqs://eu-west-1", "sqs://eu-west-1"),
    ],
)
def test_redaction(url: str, shown: str) -> None:
    assert redacted(url) == shown


def test_a_missing_package_is_named_with_the_extra_that_has_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needy_backend.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(urls.SCHEMES, "needy", ("needy_backend", "aws"))
    with pytest.raises(
        InvalidParameterError, match=r"no_such_package: pip install 'weakincentives\[aws\]'"
    ):
        connect("needy://")
    assert "needy_backend" not in sys.modules


def test_a_part_of_ours_that_is_missing_is_not_blamed_on_an_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(urls.SCHEMES, "gone", ("weakincentives.no_such_module", "aws"))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        connect("gone://")
