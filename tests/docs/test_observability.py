"""The tables of metrics, spans and log records say what the code does."""

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from tests.observability.conftest import Recorder
from tests.observability.test_prometheus import fail, letter
from weakincentives.observability import observe
from weakincentives.observability import opentelemetry as otel
from weakincentives.observability.event_log import LEVELS, facts_of, name_of
from weakincentives.observability.metrics import METRICS
from weakincentives.runtime import (
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    Worker,
    replay_dead_letters,
)
from weakincentives.runtime import events as of_loops
from weakincentives.runtime.mailbox import events as of_mailboxes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "observability.md").read_text(encoding="utf-8")


def table(heading: str, number: int = 0) -> list[list[str]]:
    """Return the cells of the table with this first line."""
    part = [part for part in PAGE.split("\n\n") if part.startswith(heading)][number]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in part.splitlines()[2:]]


def code(cell: str) -> list[str]:
    return re.findall("`([^`]+)`", cell)


def test_every_metric_of_prometheus() -> None:
    shown = [
        (code(name)[0], kind, tuple(code(labels)), meaning)
        for name, kind, labels, meaning in table("| metric | type | labels |")
    ]
    assert shown == [
        (one.name + "_total" * (one.kind == "counter"), one.kind, one.labels, one.help)
        for one in METRICS
    ]


def test_every_alert() -> None:
    rules = (ROOT / "deploy" / "prometheus" / "alerts.yml").read_text(encoding="utf-8")
    assert [code(name)[0] for name, _ in table("| alert |")] == re.findall(r"alert: (\w+)", rules)


def test_every_attribute_of_spans() -> None:
    values = {value for value in vars(otel).values() if isinstance(value, str)}
    name = re.compile(r"(messaging|weakincentives|error)\.[a-z_.]+")
    named = set(filter(name.fullmatch, values)) - {otel.__name__, otel.__package__}
    assert {code(name)[0] for name, *_ in table("| attribute |")} == named


def test_every_span() -> None:
    recorder = Recorder()
    box = InMemoryMailbox[str, Any]("M")
    worker = Worker(box, str)
    observe(worker, recorder.telemetry)
    box.send_expecting_reply("tea")
    worker.run(max_iterations=1, wait_time_seconds=0)
    made = {(span.name, span.kind.name.lower()) for span in recorder.spans()}
    assert made == {(code(name)[0], kind) for name, kind, *_ in table("| span |")}
    points = set(recorder.points())
    assert points == {code(name)[0] for name, *_ in table("| metric | type | meaning |")}


def test_every_event_in_the_log() -> None:
    kinds = [
        getattr(module, name)
        for module in (of_mailboxes, of_loops)
        for name in module.__all__
        if dataclasses.is_dataclass(getattr(module, name))
    ]
    bases = {of_mailboxes.MailboxEvent, of_loops.LoopEvent, of_mailboxes.MessageSending}
    said = {
        name_of(kind): (
            logging.getLevelName(LEVELS.get(kind, logging.DEBUG)).lower(),
            list(facts_of(kind(*["x"] * len(dataclasses.fields(kind))))),
        )
        for kind in kinds
        if kind not in bases
    }
    shown = {code(name)[0]: (level, code(facts)) for name, level, facts in table("| record |", 1)}
    assert shown == said


def test_the_records_with_a_fixed_name(caplog: pytest.LogCaptureFixture) -> None:
    orders, letters = InMemoryMailbox[str, Any]("orders"), InMemoryMailbox[Any, None]("dlq")
    with caplog.at_level(logging.INFO):
        orders.send("tea")
        dlq = DLQPolicy(letters, max_delivery_count=1)
        Worker(orders, fail, dlq=dlq).run(max_iterations=1, wait_time_seconds=0)
        replay_dead_letters(letters, orders)
        letters.send(letter("one"))
        DLQConsumer(mailbox=letters, handler=fail).run(max_iterations=1, wait_time_seconds=0)
    shown = {code(name)[0]: code(facts) for name, _, facts in table("| record |")}
    shown["DLQ handler failed"] = shown["Message handling failed"]
    for name, facts in shown.items():
        record = next(one for one in caplog.records if one.getMessage().startswith(name))
        ordinary = {*vars(logging.makeLogRecord({})), "message", "taskName"}
        fields = {field: value for field, value in vars(record).items() if field not in ordinary}
        assert fields.pop("event") == name
        assert list(fields) == facts, name
