"""What pages and examples may need."""

from collections.abc import Callable

import pytest
from tests.services import redis_url

__all__ = ["Provide", "provide", "redis_url"]

Provide = Callable[[frozenset[str]], None]


@pytest.fixture
def provide(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Provide:
    """Start what a page needs and tell it where by an environment variable such as REDIS_URL."""

    def start(needs: frozenset[str]) -> None:
        unknown = needs - {"redis"}
        if unknown:
            pytest.fail(f"no fixture can provide {', '.join(sorted(unknown))}")
        if "redis" in needs:
            monkeypatch.setenv("REDIS_URL", request.getfixturevalue("redis_url"))

    return start
