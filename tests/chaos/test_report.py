"""The tables of docs/reliability.md come from the run that is kept beside them."""

import json

import pytest

from chaos.report import BEGIN, END, PAGE, RESULTS, generated

ROW = {
    "key": "workers.worker_kill.redis",
    "name": "worker kill",
    "subject": "workers",
    "backend": "redis",
    "what": "kill -9 of a worker",
    "trials": 200,
    "violations": 0,
    "examples": [],
    "figures": {"recovery p99, s": 1.02, "sent": 1200},
    "notes": [],
    "not_run": "",
    "seconds": 60.0,
}
DOCUMENT = {
    "date": "2026-01-02",
    "seed": 8,
    "scale": "full",
    "minutes": 12.5,
    "versions": {"Python": "3.11"},
    "rows": [ROW],
}


def test_a_row_shows_its_bound_and_figures() -> None:
    text = generated(DOCUMENT)
    assert "Run on 2026-01-02: seed 8, scale full, 12.5 minutes" in text
    assert (
        "| kill -9 of a worker | redis | 200 | 0 | 0.015 | recovery p99, s: 1.02; sent: 1,200 |"
        in text
    )


def test_a_row_that_was_added_later_says_when() -> None:
    later = {**ROW, "date": "2026-01-03", "python": "3.13.0"}
    assert "sent: 1,200; run on 2026-01-03, Python 3.13.0 |" in generated(
        {**DOCUMENT, "rows": [later]}
    )
    same = {**ROW, "date": "2026-01-02", "python": "3.11"}
    assert "sent: 1,200 |" in generated({**DOCUMENT, "rows": [same]})


def test_a_violation_has_no_bound_and_is_counted_by_kind() -> None:
    bad = {**ROW, "violations": 1, "examples": ["lost: m, sent by s"]}
    text = generated({**DOCUMENT, "rows": [bad]})
    assert "| 200 | 1 | - |" in text
    assert "| messages lost | 1 |" in text


def test_what_did_not_run_is_said() -> None:
    text = generated({**DOCUMENT, "rows": [ROW, {**ROW, "not_run": "no server", "trials": 0}]})
    assert "- worker kill on redis: no server" in text


def test_a_scenario_that_was_not_part_of_the_run_is_said() -> None:
    text = generated(DOCUMENT)
    assert "- worker kill on sqlite: it was not part of this run" in text
    assert "- worker kill on redis:" not in text


def test_the_page_is_what_the_kept_run_says() -> None:
    if not RESULTS.exists():
        pytest.skip("NOT RUN: there is no chaos-results.json; `make chaos` writes it")
    document = json.loads(RESULTS.read_text(encoding="utf-8"))
    page = PAGE.read_text(encoding="utf-8")
    assert page.partition(BEGIN)[2].partition(END)[0] == "\n" + generated(document)
    assert sum(row["violations"] for row in document["rows"]) == 0
