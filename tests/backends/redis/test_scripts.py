"""The names that Python has for a script's keys and arguments are those of the script itself."""

import re
from importlib.resources import files

import pytest

from weakincentives.contrib.mailbox.redis.scripts import ARGUMENTS, KEYS, script

FOLDER = files("weakincentives.contrib.mailbox.redis") / "scripts"
SCRIPTS = sorted(
    path.name.removesuffix(".lua") for path in FOLDER.iterdir() if path.name.endswith(".lua")
)
NUMBERED = re.compile(r"^-- (?:KEYS|ARGV|    )  (\d+) (\w+)\b", re.MULTILINE)
LOCAL = re.compile(r"^ *local ([\w, ]+) = (.+)$", re.MULTILINE)
GIVEN = re.compile(r"\b(KEYS|ARGV)\[(\d+)\]")


def parts(name: str) -> tuple[str, str]:
    """Return the header and the body of a script."""
    header, _, body = (FOLDER / f"{name}.lua").read_text(encoding="utf-8").partition("\n\n")
    return header, body


def named_in_header(name: str, kind: str) -> tuple[str, ...]:
    header, _ = parts(name)
    found = re.search(rf"^-- {kind} .*?(?=^-- (?:ARGV|Returns)|^--$|\Z)", header, re.M | re.S)
    rows = NUMBERED.findall(found[0]) if found else []
    assert [int(number) for number, _ in rows] == list(range(1, len(rows) + 1))
    return tuple(word for _, word in rows)


def test_every_script_is_in_the_table() -> None:
    assert sorted(KEYS) == SCRIPTS
    assert set(ARGUMENTS) <= set(KEYS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_header_has_the_same_names_in_the_same_order(name: str) -> None:
    assert named_in_header(name, "KEYS") == KEYS[name]
    assert named_in_header(name, "ARGV") == ARGUMENTS.get(name, ())


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_body_uses_those_names(name: str) -> None:
    _, body = parts(name)
    tables = {"KEYS": KEYS[name], "ARGV": ARGUMENTS.get(name, ())}
    found = 0
    for left, right in LOCAL.findall(body):
        for variable, value in zip(left.split(", "), right.split(", "), strict=False):
            for kind, number in GIVEN.findall(value):
                found += 1
                assert tables[kind][int(number) - 1 :][:1] == (variable,)
    named = [one for one in GIVEN.findall(body) if int(one[1]) <= len(tables[one[0]])]
    assert found == len(named), "a key or an argument is used without its name"


def test_a_repeat_is_marked_where_the_script_looks_for_it() -> None:
    marked = {name: script(name).repeated for name in SCRIPTS}
    assert {name: at for name, at in marked.items() if at is not None} == {
        "answer": 5,
        "cancel": 1,
        "delete": 1,
        "lease": 5,
        "put_off": 2,
        "reply": 2,
        "settle": 2,
    }
