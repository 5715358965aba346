"""What all backends have in common, whatever they stand on."""

import gc
import importlib
import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from weakref import ref

import pytest

import weakincentives.contrib.mailbox as contrib_mailbox
from weakincentives import Backend, connect
from weakincentives.contrib.mailbox.redis.backend import RedisBackend
from weakincentives.contrib.mailbox.sqlite.backend import SQLiteBackend
from weakincentives.contrib.mailbox.sqs.backend import SQSBackend
from weakincentives.runtime.mailbox import InvalidParameterError, MailboxClosedError
from weakincentives.runtime.mailbox.memory.backend import MemoryBackend

ROOM = Path(contrib_mailbox.__file__ or "").parent
DOORS = {"backend", "connection", "errors", "mailbox", "replies", "store"}
BACKENDS = (MemoryBackend, SQLiteBackend, RedisBackend, SQSBackend)


@pytest.fixture(params=["memory", "sqlite", "redis"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    # Nothing listens there: opening a mailbox asks no server.
    urls = {"sqlite": f"sqlite:///{tmp_path}/a.db", "redis": "redis://127.0.0.1:1"}
    return connect(urls.get(request.param, "memory://"))


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_backend_opens_mailboxes_with_the_same_keywords(kind: type) -> None:
    theirs = inspect.signature(kind.mailbox).parameters  # type: ignore[attr-defined]
    assert dict(theirs) == dict(inspect.signature(Backend.mailbox).parameters)


@pytest.mark.parametrize("kind", BACKENDS)
def test_every_backend_follows_the_protocol(kind: type) -> None:
    names = [name for name in dir(Backend) if not name.startswith("_")]
    assert [name for name in names if not hasattr(kind, name)] == []


def test_a_closed_backend_opens_nothing(backend: Any) -> None:
    mailbox = backend.mailbox("a")
    backend.close()
    assert mailbox.closed
    with pytest.raises(MailboxClosedError, match="was closed"):
        backend.mailbox("b")
    backend.close()


def test_a_bad_option_is_refused_before_anything_is_opened(backend: Any) -> None:
    with backend, pytest.raises(InvalidParameterError, match="max_size"):
        backend.mailbox("a", max_size=0)


def test_a_file_that_others_use_stays_open_and_the_backend_does_not(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with connect(url) as other:
        closed = connect(url)
        closed.close()
        other.mailbox("a").send("x")
        with pytest.raises(MailboxClosedError):
            closed.mailbox("a")


def test_a_backend_keeps_no_mailbox_alive() -> None:
    sqs = Mock(**{"meta.config.read_timeout": 30})
    sqs.get_queue_url.return_value = {"QueueUrl": "https://sqs.eu-west-1.amazonaws.com/1/a"}
    backend = SQSBackend(sqs)
    mailbox = ref(backend.mailbox("a"))
    gc.collect()
    assert mailbox() is None


@pytest.mark.parametrize("room", sorted(path.parent.name for path in ROOM.glob("*/backend.py")))
def test_every_backend_has_the_same_doors(room: str) -> None:
    assert {path.stem for path in (ROOM / room).glob("*.py")} >= DOORS
    backend = importlib.import_module(f"{contrib_mailbox.__name__}.{room}.backend")
    assert callable(backend.open_backend)
