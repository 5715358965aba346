"""The types that users see are part of the product: mypy and pyright read these two files."""

import json
import os
import re
import shutil
import subprocess
import sys
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


def marked() -> Counter[tuple[int, str]]:
    """Lines of rejected.py that a checker must refuse, with mypy's code for the error."""
    lines = (HERE / "rejected.py").read_text().splitlines()
    found = Counter(
        (number, mark[1]) for number, line in enumerate(lines, 1) if (mark := EXPECTED.search(line))
    )
    assert len(found) > 25
    return found


def test_what_users_must_not_write_is_refused_and_nothing_else(
    errors: dict[str, list[tuple[int, str, str]]],
) -> None:
    assert Counter((line, code) for line, code, _ in errors["rejected.py"]) == marked()


def pyright() -> str:
    """Where pyright is; basedpyright is the same checker as a package with all that it needs."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    for name in ("basedpyright", "pyright"):
        if found := shutil.which(name, path=places):
            return found
    if os.environ.get("CI"):
        pytest.fail("there is no pyright: pip install basedpyright")
    pytest.skip("there is no pyright: pip install basedpyright")


@pytest.mark.slow
def test_pyright_accepts_and_refuses_the_same_lines(tmp_path: Path) -> None:
    for name in ("accepted.py", "rejected.py"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "pyrightconfig.json").write_text(
        '{"typeCheckingMode": "standard", "pythonVersion": "3.11"}', encoding="utf-8"
    )
    done = subprocess.run(
        [pyright(), "--pythonpath", sys.executable, "--outputjson", "--level", "error"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found}
    assert lines == {("rejected.py", line) for line, _ in marked()}, found
