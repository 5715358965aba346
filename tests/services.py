"""Servers that pages and seeds need: a missing one is a loud skip, in CI a failure."""

import importlib
import os
from collections.abc import Iterator
from types import ModuleType
from typing import NoReturn

import pytest

__all__ = ["aws_endpoint", "missing", "redis_url"]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a real server, started for these tests."""
    servers = _servers("tests.servers")
    available = servers.servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    with servers.Standalone(next(iter(available.values()))) as server:
        yield server.url


@pytest.fixture(scope="session")
def aws_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an emulator of SQS and DynamoDB, started for these tests."""
    servers = _servers("tests.aws.servers")
    try:
        with servers.running(servers.MINISTACK, tmp_path_factory.mktemp("aws")) as endpoint:
            yield endpoint
    except servers.Unavailable as error:
        missing(str(error))


def missing(what: str) -> NoReturn:
    """Skip the test, unless this is where everything must run."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {what}")
    pytest.skip(f"NOT RUN: {what}")


def _servers(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing(f"there is no server to run it on: {error}")
