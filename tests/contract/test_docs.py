"""The page about the contract is true: its programs run, and the hooks it lists exist."""

import re
from pathlib import Path
from typing import Any

from weakincentives.contrib.mailbox.contract import MailboxContract

PAGE = (Path(__file__).parents[2] / "docs" / "contract.md").read_text(encoding="utf-8")


def test_the_programs_run() -> None:
    names: dict[str, Any] = {"__name__": "docs_contract"}
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    for program in programs:
        exec(compile(program, "docs/contract.md", "exec"), names)
    assert len(programs) == 2
    assert issubclass(names["TestMyMailbox"], MailboxContract)


def test_every_hook_is_listed_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)[^|]*\| ([^|]+) \|", PAGE, re.MULTILINE))
    for hook, default in rows.items():
        assert hasattr(MailboxContract, hook), hook
        value = getattr(MailboxContract, hook)
        if not callable(value):
            assert eval(default.strip("`")) == value, hook
