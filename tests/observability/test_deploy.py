"""The dashboard and the alert rules load, and ask only for metrics that exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest

from tests.services import missing
from weakincentives.observability import observe
from weakincentives.observability.metrics import METRICS
from weakincentives.runtime import InMemoryMailbox, Worker

from .conftest import Page
from .test_prometheus import drain

DEPLOY = Path(__file__).parents[2] / "deploy"
ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = DEPLOY / "grafana" / "weakincentives.json"
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
ON_THE_PAGE = {metric.name + suffix for metric in METRICS for suffix in SUFFIXES[metric.kind]}
LABELS = {label for metric in METRICS for label in metric.labels}


def promtool(*arguments: str, text: str = "", within: Path = DEPLOY) -> None:
    program = shutil.which("promtool")
    if program is None:
        missing("no promtool: the Debian package prometheus has it")
    done = subprocess.run(
        [program, *arguments],
        input=text,
        cwd=within,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return found


def expressions(board: dict[str, Any]) -> Iterator[str]:
    for panel in board["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:wink|dlq)_[a-z_]+\b", text))


def test_alerts_ask_for_metrics_that_exist() -> None:
    text = ALERTS.read_text(encoding="utf-8")
    exprs = " ".join(re.findall(r"expr: (.+?)\n        (?:for|labels):", text, re.DOTALL))
    assert names_in(exprs) <= ON_THE_PAGE
    # Descriptions name metrics without the suffixes.
    assert names_in(text) <= ON_THE_PAGE | {metric.name for metric in METRICS}


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    asked = {name for expression in expressions(board()) for name in names_in(expression)}
    assert asked <= ON_THE_PAGE
    for expression in expressions(board()):
        for labels in re.findall(r"by \(([^)]+)\)", expression):
            assert set(labels.split(", ")) <= LABELS | {"le"}


def test_every_metric_of_the_dead_letters_is_on_the_dashboard() -> None:
    shown = " ".join(expressions(board()))
    for metric in METRICS:
        if metric.name.startswith("dlq_"):
            assert metric.name in shown


def test_the_alerts_load_and_fire_when_they_should() -> None:
    promtool("check", "rules", "alerts.yml", within=ALERTS.parent)
    promtool("test", "rules", "alerts_test.yml", within=ALERTS.parent)


def test_every_alert_has_a_test_for_trouble_and_for_its_absence() -> None:
    alerts = re.findall(r"alert: (\w+)", ALERTS.read_text(encoding="utf-8"))
    tests = (ALERTS.parent / "alerts_test.yml").read_text(encoding="utf-8")
    for alert in alerts:
        assert len(re.findall(rf"alertname: {alert}\b", tests)) == 2, alert


def test_prometheus_can_read_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    """As rules, with a value where Grafana would put one."""
    rules = [
        {
            "record": f"dashboard:{number}",
            "expr": expression.replace("$__rate_interval", "5m").replace("$mailbox", ".*"),
        }
        for number, expression in enumerate(expressions(board()))
    ]
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    promtool("check", "rules", str(path), within=tmp_path)


def test_grafana_can_read_the_dashboard() -> None:
    """With Grafana's own models: nothing is unknown to them, nothing is lost."""
    try:
        from grafana_foundation_sdk.cog.encoder import JSONEncoder
        from grafana_foundation_sdk.cog.plugins import register_default_plugins
        from grafana_foundation_sdk.models.dashboard import Dashboard
    except ImportError:
        missing("no grafana-foundation-sdk")
    register_default_plugins()
    read = json.loads(json.dumps(Dashboard.from_json(board()), cls=JSONEncoder))
    assert list(expressions(read)) == list(expressions(board()))
    assert [panel["title"] for panel in read["panels"]] == [
        panel["title"] for panel in board()["panels"]
    ]
    assert set(board()) <= set(read)


def test_panels_do_not_overlap() -> None:
    taken = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in board()["panels"]
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(taken) == len(set(taken))
    assert max(x for x, _ in taken) < 24
    ids = [panel["id"] for panel in board()["panels"]]
    assert len(ids) == len(set(ids))


def test_the_page_follows_the_rules_of_prometheus(page: Page) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    worker = Worker(box, str)
    observe(worker, page.metrics)
    box.send("tea")
    drain(worker)
    text = generate_latest(page.registry).decode()
    # Seconds are the base unit; the specification of dead letters wants milliseconds in one place.
    kept = [line for line in text.splitlines() if "_duration_ms" not in line]
    promtool("check", "metrics", text="\n".join(kept) + "\n")
