"""A scenario that breaks, or never ends, is a violation; it does not stop the others."""

import json
import logging
import sys
import threading
from pathlib import Path
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


def test_rows_are_added_to_the_run_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def row(key: str) -> dict[str, Any]:
        kept = {"key": key, "violations": 0, "trials": 1, "not_run": "", "seconds": 1.0}
        return {**kept, "figures": {}, "notes": [], "examples": [], "date": "2026-01-02"}

    results = tmp_path / "results.json"
    whole = {"date": "2026-01-02", "seed": 8, "scale": "short", "versions": {"Python": "3.11"}}
    keys = ["workers.worker_kill.redis", "callers.readers_of_parts.sqlite"]
    results.write_text(json.dumps({**whole, "rows": [row(key) for key in keys]}))
    monkeypatch.setattr(runs, "run", lambda one, seed, scale: {**row(one.key), "date": "later"})
    monkeypatch.setattr(logging, "disable", lambda level: None)
    monkeypatch.setattr(sys, "argv", ["chaos", "--json", str(results), "readers_of_parts.sqlite"])
    assert runs.main() == 0
    written = json.loads(results.read_text())
    assert (written["date"], written["versions"]) == ("2026-01-02", {"Python": "3.11"})
    assert {row["key"]: row["date"] for row in written["rows"]} == {
        keys[0]: "2026-01-02",
        keys[1]: "later",
    }
