"""The blocks of the specification run as they stand, or a table says why one cannot."""

import ast
import asyncio
import importlib
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from tests.seeds import table_000, table_001, table_002, table_003, table_003_more, table_004
from tests.seeds.extract import SEEDS, Block, blocks
from tests.seeds.stage import Stage
from tests.seeds.table import GROUPS, Cannot, Entry, Pieces, Run
from tests.services import missing

BLOCKS = blocks()
TABLES: list[tuple[str, dict[int, Entry]]] = [
    ("000", table_000.TABLE),
    ("001", table_001.TABLE),
    ("002", table_002.TABLE),
    ("003", table_003.TABLE),
    ("003", table_003_more.TABLE),
    ("004", table_004.TABLE),
]
PEP_695 = re.compile(r"^\s*class \w+\[", re.MULTILINE)
PIECE = re.compile(r"^(?=# (?:Bad|Good)\b)", re.MULTILINE)


def runs() -> Iterator[Any]:
    """One parameter for each time that a block, or a piece of one, runs."""
    for seed, table in TABLES:
        for index, entry in table.items():
            several: list[Run] = []
            match entry:
                case Run():
                    several = [entry]
                case Pieces():
                    several = list(entry.runs)
                case list():
                    several = entry
            for number, run in enumerate(several):
                piece = number if isinstance(entry, Pieces) else None
                name = f"{seed}-{index}" + (f"-{number}" if len(several) > 1 else "")
                yield pytest.param((seed, index), run, piece, id=name)


def test_the_tables_cover_every_block_exactly_once() -> None:
    must_be_there()
    listed = [(seed, index) for seed, table in TABLES for index in table]
    assert sorted(listed) == sorted(BLOCKS)


def test_what_cannot_run_says_why() -> None:
    excused = {
        (seed, index): entry.reason
        for seed, table in TABLES
        for index, entry in table.items()
        if isinstance(entry, Cannot)
    }
    assert all(reason for reason in excused.values())
    assert len(excused) <= 3


@pytest.mark.parametrize(("key", "run", "piece"), list(runs()))
def test_block(key: tuple[str, int], run: Run, piece: int | None, stage: Stage) -> None:
    must_be_there()
    block = BLOCKS[key]
    code, line = part(block, piece)
    if PEP_695.search(code) and sys.version_info < (3, 12):
        pytest.skip("its type parameters are syntax of Python 3.12")
    for group in run.needs:
        must_be_built(GROUPS[group])
    if "redis" in run.needs:
        stage.redis()

    module = types.ModuleType(f"seed_{block.seed}_{block.index}")
    stage.monkeypatch.setitem(sys.modules, module.__name__, module)
    stage.namespace = vars(module)
    stage.namespace.update(run.names(stage))
    before = dict(stage.namespace)
    program = compiled(code, line, block, run.inside)
    if run.raises is None:
        execute(program, stage.namespace)
        call_tests(stage.namespace, before)
    else:
        with pytest.raises(run.raises):
            execute(program, stage.namespace)
    run.check(stage.namespace)


def must_be_there() -> None:
    """Skip where the specification is not: it is no part of the repository."""
    if not BLOCKS:
        pytest.skip(f"NOT RUN: the specification is not at {SEEDS}; set WINK_SEEDS")


def part(block: Block, piece: int | None) -> tuple[str, int]:
    """Return the code of a block or of one of its pieces, and its first line."""
    if piece is None:
        return block.code, block.line
    pieces = [text for text in PIECE.split(block.code) if text.strip()]
    before = "".join(pieces[:piece])
    return pieces[piece], block.line + before.count("\n")


def compiled(code: str, line: int, block: Block, inside: str) -> types.CodeType:
    """Compile a block so that a traceback shows the document's own lines."""
    if inside == "function":
        code = f"def program():\n{textwrap.indent(code, '    ')}\nreturned = program()\n"
        line -= 1
    return compile(
        "\n" * (line - 1) + code,
        str(block.path),
        "exec",
        flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
        dont_inherit=True,
    )


def execute(program: types.CodeType, namespace: dict[str, Any]) -> None:
    """Run a block; one that awaits in an event loop."""
    if program.co_flags & inspect.CO_COROUTINE:

        async def main() -> None:
            await types.FunctionType(program, namespace)()

        asyncio.run(main())
    else:
        exec(program, namespace)


def must_be_built(where: str) -> None:
    """Skip a block whose part of the package does not exist yet."""
    module, _, name = where.partition(":")
    try:
        getattr(importlib.import_module(module), name)
    except AttributeError:
        missing(f"not built yet: {where}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("weakincentives"):
            raise
        missing(f"not built yet: {where}")


def call_tests(namespace: dict[str, Any], before: dict[str, Any]) -> None:
    """Call the test functions that a block defined, with the fixtures that they name."""
    for name, value in list(namespace.items()):
        if name.startswith("test_") and before.get(name) is not value:
            with ExitStack() as fixtures:
                given = {
                    parameter: fixtures.enter_context(fixture(namespace[parameter]))
                    for parameter in inspect.signature(value).parameters
                }
                value(**given)


@contextmanager
def fixture(value: Any) -> Iterator[Any]:
    """Set up and tear down a fixture of a block; what is none is its own value."""
    function = getattr(value, "_get_wrapped_function", lambda: None)() or getattr(
        getattr(value, "__pytest_wrapped__", None), "obj", None
    )
    if function is None:
        yield value
    elif inspect.isgeneratorfunction(function):
        with contextmanager(function)() as made:
            yield made
    else:
        yield function()
