"""Fixtures of the seeds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.seeds.stage import Stage
from tests.services import redis_url

__all__ = ["redis_url", "stage"]


@pytest.fixture
def stage(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Stage]:
    """What a block is given, in a directory of its own."""
    monkeypatch.chdir(tmp_path)
    made = Stage(request, monkeypatch, tmp_path)
    yield made
    made.close()
