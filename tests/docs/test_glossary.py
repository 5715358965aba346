"""The glossary has every module and public class, and nothing that no longer exists."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "weakincentives"
PAGE = ROOT / "docs" / "glossary.md"

# Example types of the contract's tests: they stand for anybody's own.
NEED_NO_ENTRY = {
    *("Colour", "Size", "Item", "Order", "Request", "Point", "Circle", "Square"),
    *(
        "Started",
        "Finished",
        "Nested",
        "Restarted",
        "Begun",
        "Tag",
        "Level",
        "Unspeakable",
        "Picky",
    ),
}


def public_classes(path: Path) -> Iterator[str]:
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        # An error's docstring is its message; it needs no second explanation.
        if isinstance(node, ast.ClassDef) and not re.match(r"_|\w+Error$", node.name):
            yield node.name


def is_named_after_a_class(path: Path, classes: set[str]) -> bool:
    stem = path.stem.replace("_", "")
    return any(name.lower().endswith((stem, stem.removesuffix("s"))) for name in classes)


def names_in(room: Path) -> set[str]:
    names: set[str] = set()
    for path in room.glob("*.py"):
        classes = set(public_classes(path)) - NEED_NO_ENTRY
        names |= classes
        if not path.name.startswith("__") and not is_named_after_a_class(path, classes):
            names.add(path.name)
    return names


def name_of(room: Path) -> str:
    return "weakincentives/" if room == SOURCE else f"{room.relative_to(SOURCE)}/"


ROOMS = {name_of(room): room for room in sorted({path.parent for path in SOURCE.rglob("*.py")})}


def entries() -> dict[str, dict[str, str]]:
    rooms: dict[str, dict[str, str]] = {}
    for section in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        title, _, rest = section.partition("\n")
        found = re.findall(r"^\| `([^`]+)` \| (.+) \|$", rest, re.MULTILINE)
        assert len(found) == len(dict(found)), f"{title} explains a name twice"
        rooms[title] = dict(found)
    return rooms


def test_every_room_has_a_section() -> None:
    assert set(entries()) == {name for name, room in ROOMS.items() if names_in(room)}


@pytest.mark.parametrize("room", ROOMS)
def test_every_name_of_a_room_is_explained(room: str) -> None:
    explained, there = set(entries().get(room, ())), names_in(ROOMS[room])
    assert sorted(there - explained) == [], "not in the glossary"
    assert sorted(explained - there) == [], "in the glossary, but no longer in the code"


@pytest.mark.parametrize("room", ROOMS)
def test_an_explanation_is_a_sentence(room: str) -> None:
    for name, meaning in entries().get(room, {}).items():
        assert meaning.endswith("."), name


def test_every_word_is_used() -> None:
    text = PAGE.read_text(encoding="utf-8").split("\n## Words\n")[1].split("\n## ")[0]
    words = re.findall(r"\*\*([^*]+)\*\*", text)
    assert len(words) == len(set(words)) > 30
    pages = [page for page in PAGE.parent.glob("*.md") if page != PAGE]
    used = " ".join(
        path.read_text(encoding="utf-8").lower().replace("_", " ")
        for path in (*SOURCE.rglob("*.py"), *pages)
    )
    assert not [word for word in words if word not in used]
