"""Servers that pages and seeds need: a missing one is a loud skip, in CI a failure."""

import importlib
import os
from collections.abc import Iterator
from typing import NoReturn

import pytest

__all__ = ["missing", "redis_url"]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a real server, started for these tests."""
    try:
        servers = importlib.import_module("tests.servers")
    except ModuleNotFoundError as error:
        missing(f"there is no server to run it on: {error}")
    available = servers.servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    with servers.Standalone(next(iter(available.values()))) as server:
        yield server.url


def missing(what: str) -> NoReturn:
    """Skip the test, unless this is where everything must run."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {what}")
    pytest.skip(f"NOT RUN: {what}")
