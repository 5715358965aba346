"""Every Python block of the documentation runs, and every example."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.conftest import Provide
from tests.docs.pages import Page, read_page

ROOT = Path(__file__).parents[2]
PAGES = [read_page(path) for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.name.startswith("_")
)
EXAMPLE_NEEDS = re.compile(r"^# needs: ([\w, ]+)$", re.MULTILINE)


def name_of(value: Page | Path) -> str:
    path = value.path if isinstance(value, Page) else value
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if page.blocks], ids=name_of)
def test_page(
    page: Page, provide: Provide, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    provide(page.needs)
    monkeypatch.chdir(tmp_path)
    # A module of its own, so that the types it defines can be looked up as in a real program.
    module = type(sys)("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    page.run(vars(module))


def test_the_page_on_evaluation_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = read_page(ROOT / "docs" / "evaluation.md")
    for _ in range(2):
        module = type(sys)("__main__")
        monkeypatch.setitem(sys.modules, "__main__", module)
        page.run(vars(module))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_is_left_out_says_why(page: Page) -> None:
    assert all(reason for _, reason in page.left_out)


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_example(example: Path, provide: Provide, tmp_path: Path) -> None:
    """It runs twice, because the files of the first run are there for the second one."""
    needs = EXAMPLE_NEEDS.search(example.read_text(encoding="utf-8"))
    if needs:
        provide(frozenset(what.strip() for what in needs[1].split(",")))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-W", "error", str(example)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_glossary_explains_each_word_once() -> None:
    glossary = ROOT / "docs" / "glossary.md"
    if not glossary.exists():
        pytest.skip("there is no docs/glossary.md yet")
    text = glossary.read_text(encoding="utf-8")
    words = [
        word.lower()
        for word in re.findall(r"^(?:#+ |[-*] \*\*|\| \*\*|\*\*)([\w /-]+)", text, re.M)
    ]
    assert words
    assert len(words) == len(set(words)), "a word is explained twice"


class TestReadPage:
    """The reader itself: a block that it does not see would pass for one that runs."""

    def read(self, tmp_path: Path, text: str) -> Page:
        path = tmp_path / "page.md"
        path.write_text(text)
        return read_page(path)

    def test_blocks_share_a_namespace_in_order(self, tmp_path: Path) -> None:
        page = self.read(
            tmp_path,
            "# T\n```python\na = 1\n```\ntext\n```bash\nrm\n```\n- item\n\n"
            "  ```py\n  b = a + 1\n  if b:\n      c = b\n  ```\n",
        )
        namespace: dict[str, object] = {}
        page.run(namespace)
        assert namespace["c"] == 2
        assert [block.line for block in page.blocks] == [3, 12]

    def test_a_block_may_be_left_out_for_a_reason(self, tmp_path: Path) -> None:
        page = self.read(
            tmp_path,
            "<!-- not run: it never ends -->\n\n```python\nwhile True: ...\n```\n"
            "```python\nx = 1\n```\n",
        )
        assert [block.code for block in page.blocks] == ["x = 1\n"]
        assert [(block.line, why) for block, why in page.left_out] == [(4, "it never ends")]

    def test_an_excuse_holds_for_the_next_block_only(self, tmp_path: Path) -> None:
        page = self.read(tmp_path, "<!-- not run: x -->\ntext\n```python\ny = 1\n```\n")
        assert len(page.blocks) == 1

    def test_a_page_says_what_it_needs(self, tmp_path: Path) -> None:
        page = self.read(tmp_path, "<!-- needs: redis, aws -->\n```python\nx = 1\n```\n")
        assert page.needs == {"redis", "aws"}

    def test_an_error_shows_the_line_of_the_page(self, tmp_path: Path) -> None:
        page = self.read(tmp_path, "one\n\n```python\nx = 1\nx / 0\n```\n")
        with pytest.raises(ZeroDivisionError) as caught:
            page.run({})
        last = caught.traceback[-1]
        assert (Path(str(last.path)).name, last.lineno + 1) == ("page.md", 5)
