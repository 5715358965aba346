"""All SQL is in the .sql files, and an INSERT names its columns."""

import ast
import re
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

from weakincentives.contrib.mailbox.sqlite.connection import SCRIPTS
from weakincentives.contrib.mailbox.sqlite.queries import QUERIES, read_script

PACKAGE = Path(str(files("weakincentives.contrib.mailbox.sqlite")))
MODULES = sorted(PACKAGE.glob("*.py"))
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|REPLACE|WITH|CREATE|ALTER|DROP)\s")
INSERT = re.compile(r"\bINSERT\b.*?\bINTO\s+(\w+)\s*(\([^)]*\))?", re.DOTALL)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_no_statement_is_written_in_python(module: Path) -> None:
    texts = [
        node.value
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    assert [text for text in texts if STATEMENT.match(text)] == []


# What a new row is without.
LATER = {
    "queue": {"id", "indexed_to"},
    "reply": {
        *("resolved_us", "payload", "handle", "worker", "deliveries", "started_at", "series"),
        *("parts", "part_bytes"),
    },
}


@pytest.mark.parametrize("name", [*SCRIPTS, "queries.sql"])
def test_an_insert_names_every_column(name: str) -> None:
    tables = apsw.Connection(":memory:")
    for script in SCRIPTS:
        tables.execute(read_script(script))
        if script == name:
            break  # it knows nothing of later versions
    for table, named in INSERT.findall(read_script(name)):
        columns = [column.strip() for column in named.strip("()").split(",")]
        existing = [row[1] for row in tables.execute(f"PRAGMA table_info({table})")]
        assert columns == [one for one in existing if one not in LATER.get(table, ())], table


def test_every_script_is_known() -> None:
    assert {path.name for path in PACKAGE.glob("*.sql")} == {*SCRIPTS, "queries.sql"}


def test_every_statement_is_used() -> None:
    used = "".join(module.read_text(encoding="utf-8") for module in MODULES)
    nested = set(re.findall(r"\{(\w+)\}", read_script("queries.sql")))
    assert [name for name in QUERIES if f'"{name}"' not in used and name not in nested] == []
