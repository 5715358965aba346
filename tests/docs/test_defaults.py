"""The tables of defaults say what the code does."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest

from weakincentives.adapters import CallableAdapter
from weakincentives.evals import EvalLoop, collect_results
from weakincentives.runtime import (
    DLQConsumer,
    DLQPolicy,
    InMemoryMailbox,
    LeaseExtenderConfig,
    LoopGroup,
    Mailbox,
    MainLoop,
    Worker,
)

PAGE = Path(__file__).parents[2] / "docs" / "loops.md"


def rows() -> Iterator[list[str]]:
    section = PAGE.read_text(encoding="utf-8").split("\n## Defaults\n")[1].split("\n## ")[0]
    for line in section.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            yield cells


def loops() -> dict[str, Any]:
    box: InMemoryMailbox[Any, Any] = InMemoryMailbox("jobs")
    main: MainLoop[Any, Any] = MainLoop(adapter=CallableAdapter(str), requests=box)
    return {
        "Worker": Worker(box, str),
        "MainLoop": main,
        "EvalLoop": EvalLoop(loop=main, evaluator=lambda *_: True, requests=box),
        "DLQConsumer": DLQConsumer(mailbox=box, handler=str),
    }


def default_of_loop(loop: Any, setting: str) -> object:
    if setting == "timeout":
        return parameter(type(loop).shutdown, "timeout")
    if setting in ("visibility_timeout", "wait_time_seconds"):
        told = parameter(type(loop).run, setting)
        return parameter(type(loop), setting) if told is None else told
    value = loop.config if isinstance(loop, Worker) else loop._worker.config
    for name in setting.split("."):
        value = getattr(value, name)
    return value


def parameter(function: Any, name: str) -> object:
    if is_dataclass(function):
        (field,) = (field for field in fields(function) if field.name == name)
        assert field.default is not MISSING
        return field.default
    return inspect.signature(function).parameters[name].default


def agrees(shown: str, value: object) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(shown) == value
    return shown == str(value)


LOOPS = [row for row in rows() if len(row) == 5]
ELSEWHERE = [row for row in rows() if len(row) == 2]


@pytest.mark.parametrize("row", LOOPS, ids=lambda row: row[0])
def test_the_defaults_of_loops(row: list[str]) -> None:
    names = re.findall("`([^`]+)`", row[0])
    for shown, loop in zip(row[1:], loops().values(), strict=True):
        assert agrees(shown, default_of_loop(loop, names[0])), type(loop)


def test_every_setting_of_a_loop_is_in_the_table() -> None:
    shown = {re.findall("`([^`]+)`", row[0])[0].split(".")[0] for row in LOOPS}
    config = Worker(InMemoryMailbox[Any, Any]("jobs"), str).config
    settings = {field.name for field in fields(config)} - {
        "dispatcher",
        "failure_level",
        "failure_log",
    }
    assert settings <= shown


@pytest.mark.parametrize("row", ELSEWHERE, ids=lambda row: row[0])
def test_the_defaults_elsewhere(row: list[str]) -> None:
    owners = {
        "Mailbox.receive": Mailbox.receive,
        "Mailbox.send_expecting_reply": Mailbox.send_expecting_reply,
        "Mailbox.send_batch_expecting_replies": Mailbox.send_batch_expecting_replies,
        "LeaseExtenderConfig": LeaseExtenderConfig,
        "DLQPolicy": DLQPolicy,
        "LoopGroup": LoopGroup,
        "LoopGroup.run": LoopGroup.run,
        "collect_results": collect_results,
    }
    owner, name = re.findall("`([^`]+)`", row[0])[:2]
    assert agrees(row[1], parameter(owners[owner], name))
