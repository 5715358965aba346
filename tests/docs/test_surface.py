"""What users can reach is what the protocols and the docs list: the inside stays inside."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weakincentives
from weakincentives.runtime.mailbox import InMemoryMailbox, InMemoryReplyStore, Mailbox, ReplyStore
from weakincentives.runtime.mailbox.seam.backend import Backend

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "mailboxes.md"
KEYS = {"aws_access_key_id": "none", "aws_secret_access_key": "none", "region_name": "eu-west-1"}
DOUBLES = {"CollectingMailbox", "FakeMailbox", "ImmediateReply", "NullMailbox"}


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def listed(title: str) -> set[str]:
    """Return the names in the first column of a section's table."""
    section = PAGE.read_text(encoding="utf-8").split(f"\n### {title}\n")[1].split("\n#")[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


def with_twins(protocol: type) -> set[str]:
    return {name for method in public(protocol) for name in (method, f"{method}_async")}


def redis_client() -> Any:
    return pytest.importorskip("redis").Redis(port=1)


def aws_client(service: str) -> Any:
    return pytest.importorskip("boto3").client(service, **KEYS)


@pytest.fixture
def mailboxes(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """One mailbox of each backend; none of these reaches a server."""
    from weakincentives.contrib.mailbox import RedisMailbox, SQLiteMailbox, SQSMailbox

    with (
        InMemoryMailbox[Any]("orders") as memory,
        SQLiteMailbox[Any]("orders", tmp_path / "orders.db") as sqlite,
        RedisMailbox[Any]("orders", redis_client()) as redis,
        SQSMailbox[Any]("https://sqs.eu-west-1.amazonaws.com/1/orders", aws_client("sqs")) as sqs,
    ):
        yield {"memory": memory, "sqlite": sqlite, "redis": redis, "sqs": sqs}


@pytest.mark.parametrize("backend", ["memory", "sqlite", "redis", "sqs"])
def test_a_mailbox_shows_its_protocol_and_what_the_docs_list(
    mailboxes: dict[str, Any], backend: str
) -> None:
    more = listed("InMemoryMailbox") if backend == "memory" else set()
    assert public(mailboxes[backend]) == public(Mailbox) | listed("Mailbox") | more


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_messages_and_replies_show_what_the_docs_list(
    mailboxes: dict[str, Any], backend: str
) -> None:
    box = mailboxes[backend]
    reply = box.send_expecting_reply("tea")
    (peeked,) = box.peek()
    (message,) = box.receive()
    assert public(peeked) == listed("Peeked")
    assert public(message) == listed("Message")
    assert public(message.reply_channel) == listed("ReplyChannel")
    assert public(reply) == listed("Reply")


def test_nothing_of_a_message_can_be_set_from_outside() -> None:
    box = InMemoryMailbox[str]("orders")
    box.send("tea")
    (message,) = box.receive()
    for name in listed("Message"):
        if not callable(getattr(message, name)):
            with pytest.raises(AttributeError):
                setattr(message, name, True)
    assert not message.is_finalized
    assert box.stats().in_flight == 1


def test_a_reply_store_shows_its_protocol_and_the_async_twins(tmp_path: Path) -> None:
    from weakincentives.contrib.mailbox import (
        DynamoDBReplyStore,
        RedisReplyStore,
        SQLiteReplyStore,
    )

    twins = with_twins(ReplyStore)
    assert public(InMemoryReplyStore()) == twins
    assert public(SQLiteReplyStore(tmp_path / "orders.db")) == twins
    assert public(RedisReplyStore(redis_client())) == twins
    assert public(DynamoDBReplyStore("replies", aws_client("dynamodb"))) == twins | {"create_table"}


@pytest.mark.parametrize(
    "url", ["memory://", "sqlite:///{path}/x.db", "redis://127.0.0.1:1", "sqs://eu-west-1"]
)
def test_a_backend_shows_its_protocol(tmp_path: Path, url: str) -> None:
    with weakincentives.connect(url.format(path=tmp_path)) as backend:
        assert public(backend) == public(Backend)


@pytest.mark.parametrize("module", ["weakincentives.runtime", "weakincentives.runtime.mailbox"])
def test_test_doubles_are_imported_only_when_they_are_used(module: str) -> None:
    program = f"""
import sys, {module} as module
assert not {DOUBLES!r} & set(module.__all__)
assert "weakincentives.runtime.mailbox.testing" not in sys.modules
from {module} import CollectingMailbox, FakeMailbox, ImmediateReply, NullMailbox
assert FakeMailbox.__module__ == "weakincentives.runtime.mailbox.testing"
assert not hasattr(module, "BrokenMailbox")
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def loggers() -> Iterator[tuple[str, str]]:
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Assign)
                and isinstance(node.value, ast.Call)
                and ast.unparse(node.value.func).endswith(("get_logger", "getLogger"))
            ):
                yield str(path.relative_to(ROOT)), ast.unparse(node.value.args[0])


def test_every_logger_is_named_after_its_module() -> None:
    found = list(loggers())
    assert len(found) > 10
    assert [path for path, name in found if name != "__name__"] == []


def test_no_page_tells_people_to_use_what_is_inside() -> None:
    inside = re.compile(r"(?<!self)\._[a-z]\w*")
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = {page.name: inside.findall(page.read_text(encoding="utf-8")) for page in pages}
    assert {name: names for name, names in found.items() if names} == {}
