import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from .cloud import Cloud
from .servers import MINISTACK, MOTO, Emulator, Unavailable, running


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that all workers of a test run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def ministack_endpoint(shared: Path) -> Iterator[str]:
    yield from serving(MINISTACK, shared)


@pytest.fixture(scope="session")
def moto_endpoint(shared: Path) -> Iterator[str]:
    yield from serving(MOTO, shared)


@pytest.fixture
def ministack(ministack_endpoint: str) -> Cloud:
    return Cloud(ministack_endpoint)


@pytest.fixture
def moto(moto_endpoint: str) -> Cloud:
    return Cloud(moto_endpoint)


def serving(emulator: Emulator, shared: Path) -> Iterator[str]:
    try:
        with running(emulator, shared) as endpoint:
            yield endpoint
    except Unavailable as error:
        if "CI" in os.environ:
            pytest.fail(str(error))
        pytest.skip(f"NO AWS TESTS: {error}")
