"""An interrupt in a loop passes by no `except`, `finally` or `with` around it."""

import sys
from pathlib import Path

import pytest

import weakincentives
from testkit.bytecode import unguarded_jumps

SOURCES = Path(weakincentives.__file__).parent


def test_no_loop_can_be_left_past_the_block_that_it_is_in():
    """Where this fails, move the loop to a function of its own, called inside the block."""
    found = [
        f"{path.relative_to(SOURCES)}:{line} {code.co_qualname}"
        for path in sorted(SOURCES.rglob("*.py"))
        for code, line in unguarded_jumps(compile(path.read_text(), str(path), "exec"))
    ]
    assert found == []


@pytest.mark.skipif(not (3, 12) <= sys.version_info < (3, 14), reason="only these have such jumps")
@pytest.mark.parametrize(
    "loop",
    [
        "while step(): work()",
        "for one in many:\n  if one: work()",
        "[one for one in many if one]",
    ],
)
@pytest.mark.parametrize("block", ["with lock:\n {}", "try:\n {}\nfinally: done()"])
def test_such_a_jump_is_found(block, loop):
    source = block.format(loop.replace("\n", "\n "))
    for text in (source, "def inner():\n " + source.replace("\n", "\n ")):
        ((_, line),) = unguarded_jumps(compile(text, "example", "exec"))
        assert line > 1
    assert not list(unguarded_jumps(compile(loop, "example", "exec")))
