"""Options are checked where they are made, and cannot change afterwards."""

import dataclasses
from typing import Any

import pytest

from weakincentives.runtime.mailbox import (
    CompositeResolver,
    InMemoryMailboxFactory,
    InMemoryReplyStore,
    InvalidParameterError,
    RegistryResolver,
)
from weakincentives.runtime.mailbox.seam.options import QueueOptions


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("max_size", value) for value in (0, -1, 1.5, True, "3")),
        *(("default_ttl", value) for value in (0, -1, "3", float("nan"), True)),
        *(("reaper_interval", value) for value in (0, -1, "3", float("nan"), None)),
        *(("max_bytes", value) for value in (0, 1023, 1024.0, "2048", 2**40)),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidParameterError, match=name):
        QueueOptions(**{name: value})


def test_options_cannot_change() -> None:
    options = QueueOptions(max_size=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.max_size = -1  # type: ignore[misc]


def test_max_bytes_is_a_limit() -> None:
    assert QueueOptions(max_bytes=2048).limits.max_bytes == 2048
    assert QueueOptions().limits.max_bytes == 1024 * 1024


def test_defaults_do_not_replace_what_was_chosen() -> None:
    factory, ours, chosen = InMemoryMailboxFactory(), InMemoryReplyStore(), InMemoryReplyStore()
    resolver = RegistryResolver({})
    kept = QueueOptions(reply_resolver=resolver, reply_store=chosen).with_defaults(factory, ours)
    assert (kept.reply_resolver, kept.reply_store) == (resolver, chosen)
    filled = QueueOptions(max_size=3).with_defaults(factory, ours)
    assert isinstance(filled.reply_resolver, CompositeResolver)
    assert (filled.reply_store, filled.max_size) == (ours, 3)
