"""A scenario that breaks, or never ends, is a violation; it does not stop the others."""

import threading
from typing import Any

import pytest

from chaos import __main__ as runs
from chaos.stage import Scenario, Stage

pytestmark = pytest.mark.skipif(
    threading.current_thread() is not threading.main_thread(), reason="signals need the main thread"
)


def row_of(act: Any) -> dict[str, Any]:
    one = Scenario("name", "subject", "memory", "what", {"full": 1, "short": 1}, act)
    return runs.run(one, 8, "short")


def test_a_scenario_that_breaks_is_a_violation() -> None:
    row = row_of(lambda stage: 1 // 0)
    assert row["violations"] == 1
    assert "ZeroDivisionError" in row["examples"][0]


def test_a_scenario_that_never_ends_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LONGEST", 1)

    def wait(stage: Stage) -> None:
        threading.Event().wait(60)

    row = row_of(wait)
    assert row["violations"] == 1
    assert "it has not ended within 1 s" in row["examples"][0]
    assert row["seconds"] < 50
