import json
import logging
from dataclasses import fields
from typing import Any

import pytest

from weakincentives.cli.log_output import JsonLines
from weakincentives.observability import EventLog, observe
from weakincentives.observability.event_log import facts_of, name_of
from weakincentives.runtime import Backoff, InMemoryMailbox, Worker, WorkerConfig
from weakincentives.runtime.mailbox import MailboxFullError
from weakincentives.runtime.mailbox.events import MessageReceived, MessageSent, SendFailed

from .test_prometheus import drain, fail

LOGGER = "weakincentives.observability.event_log"


def test_events_are_records_with_fields(caplog: pytest.LogCaptureFixture) -> None:
    box = InMemoryMailbox[str, Any]("orders")
    worker = Worker(box, fail, config=WorkerConfig(backoff=Backoff(base=0, cap=0)))
    observe(worker, EventLog())
    with caplog.at_level(logging.DEBUG, LOGGER):
        id = box.send("secret", attributes={"key": "secret"})
        drain(worker)
    records = [record for record in caplog.records if record.name == LOGGER]
    assert [record.getMessage().split()[0] for record in records] == [
        "message_sent",
        "message_received",
        "job_started",
        "job_failed",
        "message_nacked",
    ]
    failed = records[3]
    assert failed.levelno == logging.INFO
    shown = json.loads(JsonLines().format(failed))
    assert (shown["mailbox"], shown["message_id"], shown["outcome"]) == ("orders", id, "retry")
    assert shown["event"] == "job_failed"
    assert not any("secret" in json.dumps(JsonLines().format(record)) for record in records)


def test_nothing_is_formatted_that_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    box = InMemoryMailbox[str, Any]("orders", max_size=1)
    observe(box, EventLog())
    with caplog.at_level(logging.INFO, LOGGER):
        box.send("tea")
        with pytest.raises(MailboxFullError):
            box.send("more")
    (record,) = caplog.records
    assert record.getMessage().startswith("send_failed mailbox=orders message_ids=")
    assert record.levelno == logging.WARNING


def test_names_and_facts() -> None:
    assert name_of(MessageSent) == "message_sent"
    assert facts_of(MessageReceived("orders", "id", 1, 2.0, {"key": "v"})) == {
        "mailbox": "orders",
        "message_id": "id",
        "delivery_count": 1,
        "waited": 2.0,
    }
    many = facts_of(SendFailed("orders", [f"id{n}" for n in range(100)], "Error"))
    assert str(many["message_ids"]).endswith("id9 ...")
    assert {field.name for field in fields(SendFailed)} == set(many)
