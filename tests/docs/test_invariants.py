"""Every invariant and trap that is cited anywhere is explained in docs/invariants.md."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "invariants.md"
CITING = ("src", "tests", "testkit", "chaos", "benchmarks", "examples", "formal", "docs")
ENDINGS = {".py", ".md", ".tla", ".lua", ".sql", ".toml"}

RANGE = re.compile(r"\bINV-(\d+)\s+to\s+INV-(\d+)")
INVARIANT = re.compile(r"\bINV-(\d+)")
TRAP = re.compile(r"\btraps?\s+(\d+)(?:\s+to\s+(\d+))?", re.IGNORECASE)


def citing_files() -> Iterator[Path]:
    yield from (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    for folder in CITING:
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in ENDINGS and path not in (PAGE, Path(__file__)):
                yield path


def cited(text: str) -> set[str]:
    names = {f"INV-{number}" for number in INVARIANT.findall(text)}
    for first, last in RANGE.findall(text):
        names |= {f"INV-{number}" for number in range(int(first), int(last) + 1)}
    for first, last in TRAP.findall(text):
        names |= {f"trap {number}" for number in range(int(first), int(last or first) + 1)}
    return names


def explained() -> set[str]:
    text = PAGE.read_text(encoding="utf-8")
    invariants = re.findall(r"^\| (INV-\d+) \|", text, re.MULTILINE)
    traps = re.findall(r"^(\d+)\. ", text.split("\n## Traps\n")[1], re.MULTILINE)
    assert len(invariants) == len(set(invariants)), "an invariant is explained twice"
    assert len(traps) == len(set(traps)), "a trap is explained twice"
    return {*invariants, *(f"trap {number}" for number in traps)}


def rows() -> list[list[str]]:
    text = PAGE.read_text(encoding="utf-8")
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| INV-")
    ]


def test_what_is_cited_is_explained() -> None:
    known = explained()
    unexplained = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in citing_files()
        for name in cited(path.read_text(encoding="utf-8")) - known
    }
    assert not unexplained


def test_citations_are_found() -> None:
    assert cited("INV-2, and INV-7 to INV-9 of the page") == {"INV-2", "INV-7", "INV-8", "INV-9"}
    assert cited("# trap 3; Traps 5 to 6") == {"trap 3", "trap 5", "trap 6"}


def test_the_model_has_the_invariants_that_are_named() -> None:
    model = (ROOT / "formal" / "Mailbox.tla").read_text(encoding="utf-8")
    defined = set(re.findall(r"^(\w+) ==", model, re.MULTILINE))
    for number, _, in_model, _ in rows():
        assert set(re.findall("`(\\w+)`", in_model)) <= defined, number


def test_the_tests_that_are_named_exist() -> None:
    folders = ("src/weakincentives/contrib/mailbox/contract", "tests")
    sources = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    defined = {
        name
        for path in sources
        for name in re.findall(r"def (\w+)\(", path.read_text(encoding="utf-8"))
    }
    for number, _, _, tests in rows():
        # Scenarios in test_traps.py are plain functions, parametrised into one test.
        names = {name.removeprefix("test_") for name in re.findall("`(\\w+)`", tests)}
        assert names, number
        assert names <= {name.removeprefix("test_") for name in defined}, number
