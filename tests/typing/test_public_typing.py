"""The types that users see are part of the product: a strict checker reads these two files."""

import re
from collections import Counter
from pathlib import Path

import mypy.api
import pytest

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".mypy_cache" / "users"
FOUND = re.compile(
    r"(?P<file>[^:]+):(?P<line>\d+): error: (?P<text>.*?)(?:  \[(?P<code>[\w-]+)\])?$"
)
EXPECTED = re.compile(r"# error: ([\w-]+)$")


@pytest.fixture(scope="module")
def errors() -> dict[str, list[tuple[int, str, str]]]:
    """Errors by file, as (line, code, text): both files in one run, which is most of the cost."""
    out, err, _ = mypy.api.run(
        [
            "--config-file=",
            "--strict",
            "--python-version=3.11",
            "--no-pretty",
            "--hide-error-context",
            f"--cache-dir={CACHE}",
            str(HERE / "accepted.py"),
            str(HERE / "rejected.py"),
        ]
    )
    assert not err, err
    by_file: dict[str, list[tuple[int, str, str]]] = {}
    for line in out.splitlines():
        if found := FOUND.match(line):
            by_file.setdefault(Path(found["file"]).name, []).append(
                (int(found["line"]), found["code"], found["text"])
            )
    return by_file


def test_what_users_may_write_is_accepted(errors: dict[str, list[tuple[int, str, str]]]) -> None:
    assert errors.get("accepted.py", []) == []


def test_what_users_must_not_write_is_refused_and_nothing_else(
    errors: dict[str, list[tuple[int, str, str]]],
) -> None:
    lines = (HERE / "rejected.py").read_text().splitlines()
    expected = Counter(
        (number, marked[1])
        for number, line in enumerate(lines, 1)
        if (marked := EXPECTED.search(line))
    )
    assert len(expected) > 25
    assert Counter((line, code) for line, code, _ in errors["rejected.py"]) == expected
